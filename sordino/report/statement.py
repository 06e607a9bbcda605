"""Privacy statement: one page for those who must answer for data.

It says what was trained on whose data, what left, who could see it and what that means, in plain words. Every figure
follows from the run's ledger.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sordino.data.schema import Label, NumberColumn, Schema
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import AT_SITES
from sordino.experiment.hyperparameters import called
from sordino.federation.client import HISTOGRAM
from sordino.federation.evaluation import COUNTED
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit, protection
from sordino.privacy.views import View
from sordino.report.wording import (
    UNPROTECTED,
    observer_of_figures,
    protects_nothing,
    replacement_words,
    with_full_stop,
)
from sordino.store.ledger_rows import Account
from sordino.store.run_summary import Summary
from sordino.store.spending import over_runs, sentence
from sordino.store.store import RunRow, Store, unfinished
from sordino.trained.models import Description, load_models
from sordino.util.formatting import delta_text

OF_SECURE_SUM = "whoever runs the server, together with all other sites; by itself it sees sums"
"""Words for the server of a deployment whose messages were added up by a secure sum."""
WHO: dict[View, str] = {
    "outsider": "anybody who sees published models and sums over clients",
    "peer": "another client, which also knows its own part of the noise",
    "server": "whoever runs the server and sees every message of every client",
}
GUESSED = {Unit.CLIENT: "a client took part", Unit.RECORD: "a record was among those trained on"}
"""Fact about a unit that an attacker guesses."""
NAMED = 12
"""Number of clients, or classes, that a sentence names."""
EACH_ITS_OWN = "(named by each site)"
"""Words in place of the label's column where each site names it itself."""
UNBOUNDED = "without bound"
"""Word for an infinite epsilon."""


@dataclass(frozen=True)
class Observer:
    """One observer, and how much it could have learned."""

    name: str
    who: str
    epsilon: float | None
    """None where there is no bound."""
    attack: float
    """Share of correct guesses of the best attack; 0.5 is that of a coin."""


@dataclass(frozen=True)
class Leaving:
    """One kind of thing that left clients."""

    name: str
    what: str
    clients: int
    most: int
    """Number of times that one client sent it, at most."""
    covered: bool


@dataclass(frozen=True)
class DataColumn:
    """One column of the tables that clients hold."""

    name: str
    kind: str
    values: str
    """The range or the values that may occur."""
    missing: str
    """Treatment of records without a value."""
    source: str
    """Person or file that declares it."""


@dataclass(frozen=True)
class Statement:
    """Content of the page."""

    run: str
    date: str
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
    predicted: str | None
    """The name of the column that is predicted, in tables."""
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
    planned_for: str
    observers: list[Observer]
    leaving: list[Leaving]
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
    return Statement(
        run=run,
        date=datetime.fromtimestamp(row.created, UTC).strftime("%d %B %Y, %H:%M UTC"),
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
        predicted=None if schema is None or not _names_label(row.configuration, simulated) else schema.label_name,
        columns=[] if schema is None else _columns(schema, row.configuration, simulated),
        shape=about.shape,
        simulated=simulated,
        trial=summary.trial_of is not None,
        unit=row.unit,
        neighbours=protects["neighbours"],
        rows_not_persons=protects.get("rows_not_persons", ""),
        delta=summary.delta,
        planned_for=summary.protect_from,
        observers=[
            Observer(view, who, summary.epsilon[view], summary.attack_accuracy[view])
            for view, who in _observers(summary).items()
        ],
        leaving=_leaving(account),
        replaced=None if level is None else level.epsilon_replace_one,
        replaced_at=None if level is None else level.delta_replace_one,
        not_covered=[with_full_stop(one) for one in summary.not_covered],
        notes=summary.notes,
        together=sentence(total, summary.protect_from),
        head=account.head,
        rows=len(account.ledger.rows),
    )


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
        is_label = isinstance(column, Label)
        occurring = is_label and configuration["table"] is None and configuration["labels"] is None
        source = "declared as public" if column.public and not occurring else "read from the records"
        if isinstance(column, NumberColumn) and column.released is not None:
            source = f"scaled by what {column.released} released"
        shown = EACH_ITS_OWN if is_label and not _names_label(configuration, simulated) else name
        found.append(DataColumn(shown, column.kind, column.describe(), str(getattr(column, "missing", "")), source))
    return found


def _leaving(account: Account) -> list[Leaving]:
    """Kinds of values that left clients, in the order in which they first left."""
    described = _release_texts(account.row)
    rows = [row for row in account.ledger.rows if not row.exposed and row.pool != PROMISED]
    found = []
    for name in dict.fromkeys(row.release for row in rows):
        mine = [row for row in rows if row.release == name]
        each = Counter(client for row in mine for client in row.clients().tolist())
        covered = not any(row.reason for row in mine)
        found.append(Leaving(name, described.get(name, ""), len(each), max(each.values(), default=0), covered))
    return found


def _release_texts(row: RunRow) -> dict[str, str]:
    """Description of each release of a run's method, by its name; empty where the method is not installed."""
    with contextlib.suppress(UserError):
        method = Experiment.make(row.configuration).build_method()
        texts = {name: release.describe() for step in method.steps().values() for name, release in step.items()}
        return {HISTOGRAM: COUNTED, **texts}
    return {}


def sentences(found: Statement) -> dict[str, list[str]]:
    """Paragraphs of the page by heading; tables and lists are not among them."""
    whom = ", ".join(found.clients) + (f" and {found.others} more" if found.others else "")
    records = f" Together the clients hold {found.records:,} training records." if found.records else ""
    column = f" in the column {found.predicted}" if found.predicted else ""
    return {
        "What was done": [
            f"A model was trained on {found.data}, the data of {len(found.clients) + found.others} clients: {whom}."
            f"{records}",
            f"The model is a network of the kind {found.network} with {found.parameters:,} parameters. It was trained "
            f"to tell {_join(found.classes)} apart{column}, with the method {found.method}, in "
            f"{found.rounds_planned if found.stopped else found.rounds} rounds.",
            *([found.features] if found.features else []),
            *([_stop(found)] if found.stopped else []),
            _machines(found),
        ],
        "What a record holds": [_holds(found)],
        "What left each client": [_treatment(found)],
        "What somebody could learn from it": [*_protection(found), *([found.together] if found.together else [])],
    }


def _stop(found: Statement) -> str:
    """Sentences on a run that was stopped before its end."""
    return (
        f"The run was stopped after {found.rounds} of {found.rounds_planned} rounds, and has no models yet. The "
        "figures below are those of all planned rounds: the run may be resumed, and whoever stopped it may have seen "
        "what had left before."
    )


def _machines(found: Statement) -> str:
    """Sentences on where the data were."""
    if found.simulated:
        return (
            "This run was a simulation: one machine held all data. This page says what would have left each client on "
            "real machines."
        )
    if found.trial:
        return (
            "This run was a trial: the server and all sites were processes of one machine, which held all data. This "
            "page says what left each site."
        )
    return "The clients trained on their own machines. Their records never left those machines."


def _holds(found: Statement) -> str:
    """Sentences on what is known of the records, and who declared it."""
    by = "" if found.simulated else " The experiment declares this. Only sites whose data fit it took part."
    if found.columns:
        return f"The table lists all columns of the clients' tables. Columns of the kind id are not used.{by}"
    shape = " x ".join(str(size) for size in found.shape)
    return f"A record is an array of shape {shape}. Its numbers have no names.{by}"


def _treatment(found: Statement) -> str:
    """Sentences on how values were treated before they left."""
    if not found.leaving:
        return "Nothing left any client."
    covered = "Values that are covered by noise were limited in size at the client, and noise was added to them there."
    bare = "Nothing of it is covered by noise."
    return (
        "Records never leave a client. Everything that does leave passes one gate and is entered in a ledger before it "
        f"is sent. {covered if any(one.covered for one in found.leaving) else bare}"
    )


def _protection(found: Statement) -> list[str]:
    """Paragraphs on what the figures protect, and from what."""
    whether = GUESSED[found.unit]
    attack = (
        f'The column "best attack" says how often the best possible attack guesses correctly whether {whether}, for '
        f"the {found.unit} that is easiest to recognise. A coin is correct in 50 % of cases."
    )
    epsilon = {one.name: one.epsilon for one in found.observers}
    if protects_nothing(epsilon):
        return [f"{UNPROTECTED}. {attack}"]
    unit, planned = "one client as a whole", f"The noise was planned against the observer {found.planned_for}."
    if found.unit.record_level:
        unit, planned = "one record of a client", _whose_noise(found)
    return [
        f"The figures protect {unit}. A smaller epsilon means stronger protection. Delta is "
        f"{delta_text(found.delta)}: roughly the chance that more is revealed than epsilon allows. Each observer is "
        f"assumed to know everything else about everybody. {planned}",
        attack,
        *_neighbours(found),
    ]


def _whose_noise(found: Statement) -> str:
    """Sentences on the noise that protects records, and on whom it holds against."""
    if _observer(found) is None:
        return "Each client adds noise of its own, which holds against every observer."
    shared = (
        "The clients share the noise: each message carries a part of it, and the sum over clients carries all of it. "
        f"It was planned against the observer {found.planned_for}."
    )
    if found.simulated:
        return shared
    return (
        f"{shared} A secure sum showed the server sums alone, so that for the server by itself the figure of the "
        "outsider holds. The figure of the server is for the case that all other sites work with it."
    )


def _neighbours(found: Statement) -> list[str]:
    """Paragraphs on the two worlds that the figures compare."""
    compared = f"The figures compare two worlds that differ in one {found.unit}. Neighbours: {found.neighbours}."
    if not found.unit.record_level:
        return [compared]
    exchanged, observer = replacement_words(found.replaced, found.replaced_at, found.delta, UNBOUNDED), _observer(found)
    whose = "" if observer is None else f" for the observer {observer}, and more for observers with a larger epsilon"
    return [
        f"{compared} Records are counted as they were read. If a record's contents are replaced by others, epsilon is "
        f"at most {exchanged}{whose}.",
        found.rows_not_persons,
    ]


def _observer(found: Statement) -> str | None:
    """Observer whom figures of which there is one alone are for; None where they hold for all."""
    return observer_of_figures({one.name: one.epsilon for one in found.observers}, found.planned_for)


def _join(names: list[str]) -> str:
    """Names as a list in a sentence, the first few of many."""
    shown = names[:NAMED]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 and not more else ", ".join(shown) + more
