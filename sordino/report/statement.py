"""Privacy statement on a run, for those who must answer for data: a summary of half a minute, and all the rest below.

It says what was trained on whose data, what left, who could see it and what that means, in plain words. Every figure
follows from the run's ledger. The page holds what NIST SP 800-226 (Guidelines for Evaluating Differential Privacy
Guarantees, 2025) asks of whoever claims a guarantee; `sordino.report.registry` has the same for machines.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sordino.data.schema import Event, Label, NumberColumn, Schema, Target, Time, list_values
from sordino.data.sources import SOURCES
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import AT_SITES, in_store
from sordino.experiment.hyperparameters import called
from sordino.federation.client import HISTOGRAM
from sordino.federation.evaluation import COUNTED, SUMMED
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit, protection
from sordino.privacy.views import VIEWS, View
from sordino.report.registry import blank_fields, registry_of_run
from sordino.report.run_facts import (
    annex_of,
    audit_command,
    guaranteed_shares,
    mechanism_of,
    public_of,
    recipients_of,
    stand_ins,
    trust_of,
    tuning_of,
    utility_of,
    utility_of_clients,
    utility_of_outcomes,
)
from sordino.report.run_page import page_of
from sordino.report.statement_blocks import StatementPage
from sordino.report.statement_facts import (
    AnnexRow,
    AuditVerdict,
    DataColumn,
    Fact,
    Observer,
    Recipient,
    ReleasedKind,
    find_audit,
    observe,
)
from sordino.report.unit_words import plain_words
from sordino.report.wording import observer_of_figures, score_of, with_full_stop
from sordino.store.ledger_rows import Account, sites_per_person
from sordino.store.run_summary import Summary
from sordino.store.spending import Spent, hits_of, over_runs, sentence
from sordino.store.store import RunRow, Store, unfinished
from sordino.tasks import Classification
from sordino.trained.models import Description, load_models
from sordino.util.formatting import NAMED
from sordino.util.package import package_hash

OF_SECURE_SUM = "whoever runs the server, together with all other sites; by itself it sees sums"
"""Words for the server of a deployment whose messages were added up by a secure sum."""
WHO: dict[View, str] = {
    "outsider": "anybody who sees published models and sums over clients",
    "peer": "another client, which also knows its own part of the noise",
    "server": "whoever runs the server and sees every message of every client",
}
EACH_ITS_OWN = "(named by each site)"
"""Words in place of the label's column where each site names it itself."""


@dataclass(frozen=True)
class Statement:
    """Content of the page."""

    run: str
    date: str
    started: str
    """Time at which the run was registered, in ISO 8601."""
    version: str
    method: str
    data: str
    clients: list[str]
    others: int
    """Number of clients that are not named."""
    records: int | None
    network: str
    features: str | None
    """Sentence on the features that the network takes, and the data these were made of."""
    parameters: int
    rounds: int
    rounds_planned: int
    stopped: bool
    """Whether the run was stopped before its end and has no models."""
    classes: list[str]
    wish: str
    score: str
    outcomes: int
    """Number of outcomes of one record that are predicted at once."""
    predicted: str | None
    """Names of the columns that are predicted, in tables."""
    columns: list[DataColumn]
    """Every column of the clients' tables; none for arrays."""
    shape: tuple[int, ...]
    """Shape of one record as the model sees it."""
    simulated: bool
    trial: bool
    """Whether a deployment was a trial on one machine."""
    unit: Unit
    neighbours: str
    """The two worlds that the figures compare."""
    rows_not_persons: str
    """Words on rows and persons, with the epsilon of several rows; empty at client level."""
    delta: float
    planned_for: View
    observers: list[Observer]
    leaving: list[ReleasedKind]
    replaced: float | None
    """At record level: epsilon for a record whose contents are exchanged for others."""
    replaced_at: float | None
    """Delta at which `replaced` holds."""
    not_covered: list[str]
    notes: list[str]
    together: str | None
    """Sentences on the cost of all runs on the same people."""
    head: str
    rows: int
    package: str
    """SHA-256 of the code that wrote the statement."""
    protects: str
    """Sentences on the protected unit for somebody who knows no statistics."""
    covered_units: int | None
    """Number of units among which one is hidden; None where it is not known."""
    mechanism: list[str]
    """Sentences on noise and limits: how they were made, and from which source of randomness."""
    shares: int
    """Clients whose noise is in every sum that an observer sees and cannot be subtracted; 1 where each client adds all
    of it."""
    colluders: int
    trust: list[str]
    """Sentences on who has to be trusted with what."""
    public: list[Fact]
    """Facts that count as public, and who declares them so."""
    tuning: str
    """Sentences on what trying out settings has cost."""
    utility: list[str]
    """Sentences on how well the models predict, as far as that is known."""
    utility_of_outcomes: list[dict[str, str]]
    """Figures of each outcome, where several are predicted at once, in the mean over clients."""
    utility_of_clients: list[list[str]]
    """Accuracies of single clients, where a simulation knows them: name, accuracy."""
    recipients: list[Recipient]
    audit: AuditVerdict | None
    audit_command: str
    """Command that attacks the method with these settings."""
    annex: list[AnnexRow]

    def page(self) -> StatementPage:
        """Page for people."""
        return page_of(self)

    def document(self) -> dict[str, Any]:
        """Document for machines: all of the above, and the fields of the Deployments Registry, bound to the ledger."""
        registry = registry_of_run(self)
        ledger = {"head": self.head, "rows": self.rows}
        return dataclasses.asdict(self) | {"ledger": ledger, "registry": registry, "blank": blank_fields(registry)}


def statement_of(store: Store, run: str) -> Statement:
    """Write the statement on a finished run, or on a stopped one of which something has left real sites."""
    account = Account.of(store, run)
    row = account.row
    summary, about = _ended(account, store)
    names = list(about.clients)
    simulated = not summary.deployed
    schema = about.meaning.schema
    protects = protection(row.unit, summary.epsilon_rows, observer_of_figures(summary.epsilon, summary.protect_from))
    level = summary.record_level
    total = over_runs(store, row.people, row.unit, summary.delta)
    shares = guaranteed_shares(account.ledger)
    units = {Unit.CLIENT: summary.clients, Unit.RECORD: summary.records, Unit.PERSON: summary.persons}
    columns = [] if schema is None else _columns(schema, row.configuration, simulated)
    observers = [
        observe(view, who, summary.epsilon[view], summary.attack_accuracy[view], *_curve(summary.spent, view))
        for view, who in _observers(summary).items()
    ]
    recipients, leaving = recipients_of(summary), _leaving(account)
    return Statement(
        run=run,
        date=datetime.fromtimestamp(row.created, UTC).strftime("%d %B %Y, %H:%M UTC"),
        started=datetime.fromtimestamp(row.created, UTC).isoformat(timespec="seconds"),
        version=about.version,
        method=called(row.configuration),
        data=str(row.configuration["data"]) if simulated else summary.trial_of or AT_SITES,
        clients=names[:NAMED],
        others=max(0, len(names) - NAMED),
        records=summary.records,
        network=about.network,
        features=None if about.features is None else str(about.features["origin"]),
        parameters=summary.parameters,
        rounds=summary.rounds_done,
        rounds_planned=summary.rounds,
        stopped=row.result is None,
        classes=list(about.meaning.task.groups),
        wish=about.meaning.task.wish,
        score=score_of(summary),
        outcomes=about.meaning.task.together,
        predicted=list_values(schema.label_names)
        if schema is not None and _names_label(row.configuration, simulated)
        else None,
        columns=columns,
        shape=about.shape,
        simulated=simulated,
        trial=summary.trial_of is not None,
        unit=row.unit,
        neighbours=protects["neighbours"],
        rows_not_persons=protects.get("rows_not_persons", ""),
        delta=summary.delta,
        planned_for=summary.protect_from,
        observers=observers,
        leaving=leaving,
        replaced=None if level is None else level.epsilon_replace_one,
        replaced_at=None if level is None else level.delta_replace_one,
        not_covered=[with_full_stop(one) for one in summary.not_covered],
        notes=summary.notes,
        together=sentence(total, summary.protect_from),
        head=account.head,
        rows=len(account.ledger.rows),
        package=package_hash(),
        protects=plain_words(row.unit, sites_per_person(row)),
        covered_units=units[row.unit],
        mechanism=mechanism_of(summary, account, any(one.covered for one in leaving)),
        shares=shares,
        colluders=int(row.configuration.get("colluders") or 0),
        trust=trust_of(summary, row.configuration, shares),
        public=public_of(summary, about, columns, simulated),
        tuning=tuning_of(total),
        utility=utility_of(summary, about),
        utility_of_outcomes=utility_of_outcomes(summary, about),
        utility_of_clients=utility_of_clients(summary, store),
        recipients=recipients,
        audit=find_audit(store.folder, summary.called, summary.variant, row.unit),
        audit_command=_audit_command(row, simulated, store.folder),
        annex=annex_of(summary, columns, recipients, observers, row.unit),
    )


def _curve(spent: Spent, view: View) -> tuple[float | None, Callable[[float], float]]:
    """The mu of Gaussian differential privacy of a run for an observer, and its hits as a function of false alarms."""
    mu = None if Unit(spent["unit"]).record_level else spent["mu"][VIEWS.index(view)]
    return mu, lambda false_alarms: hits_of(spent, view, false_alarms)


def _audit_command(row: RunRow, simulated: bool, store: Path) -> str:
    """Command that attacks a run's method with its settings: on its own data, where the machine has them."""
    data = str(row.configuration["data"])
    if simulated and data not in SOURCES:  # own files, whose schema and label no option needs to repeat
        return f"sordino audit {row.run}{in_store(store)}"
    command = audit_command(row.configuration, data if simulated else None, store)
    return command + (stand_ins(row.configuration) if row.unit is Unit.PERSON else "")


def _observers(summary: Summary) -> dict[View, str]:
    """Each observer of a run, and who that is."""
    return WHO | ({"server": OF_SECURE_SUM} if summary.summed_securely else {})


def _ended(account: Account, store: Store) -> tuple[Summary, Description]:
    """Summary of a run, and description of its models; a stopped simulation, of which nothing has left anybody, is
    refused."""
    row = account.row
    if row.result is not None:
        return row.result, load_models(row.run, store.folder).about
    if row.gone or row.state == "running" or row.configuration["data"] != AT_SITES:
        raise unfinished(row, store.folder)
    from sordino.deploy.server.stopped import summarize_stopped

    return summarize_stopped(row.run, store, account.ledger)


def _names_label(configuration: Mapping[str, Any], simulated: bool) -> bool:
    """Whether all clients call the label's column the same; without a schema each site has a name of its own for it."""
    return simulated or configuration["table"] is not None


def _columns(schema: Schema, configuration: Mapping[str, Any], simulated: bool) -> list[DataColumn]:
    """All declared columns."""
    found = []
    for name, column in schema.columns.items():
        is_label = isinstance(column, Label | Target | Time | Event)
        occurring = isinstance(column, Label) and configuration["table"] is None and configuration["labels"] is None
        source = "declared as public" if column.public and not occurring else "read from the records"
        if isinstance(column, NumberColumn | Target) and column.released is not None:
            source = f"scaled by what {column.released} released"
        shown = EACH_ITS_OWN if is_label and not _names_label(configuration, simulated) else name
        found.append(DataColumn(shown, column.kind, column.describe(), str(getattr(column, "missing", "")), source))
    return found


def _leaving(account: Account) -> list[ReleasedKind]:
    """Kinds of values that left clients, in the order in which they first left."""
    described = _release_texts(account.row)
    rows = [row for row in account.ledger.rows if not row.exposed and row.pool != PROMISED]
    found = []
    for name in dict.fromkeys(row.release for row in rows):
        mine = [row for row in rows if row.release == name]
        each = Counter(client for row in mine for client in row.clients().tolist())
        covered = not any(row.reason for row in mine)
        found.append(ReleasedKind(name, described.get(name, ""), len(each), max(each.values(), default=0), covered))
    return found


def _release_texts(row: RunRow) -> dict[str, str]:
    """Description of each release of a run's method, by its name; empty where the method is not installed."""
    with contextlib.suppress(UserError):
        method = Experiment.make(row.configuration).build_method()
        texts = {name: release.describe() for step in method.steps().values() for name, release in step.items()}
        classes = (row.summary or {}).get("task", Classification.name) == Classification.name
        return {HISTOGRAM: COUNTED if classes else SUMMED, **texts}
    return {}
