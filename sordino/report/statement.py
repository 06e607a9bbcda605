"""One page for those who must answer for data: what was trained on whose, what left, who could see it, what that means.

Plain words, and no figure that does not follow from the run's ledger.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sordino.data.schema import Label, Number, Schema
from sordino.errors import UserError
from sordino.experiment.config import AT_SITES, Experiment
from sordino.experiment.hyperparameters import called
from sordino.privacy.views import protection
from sordino.report.wording import UNPROTECTED, ended, replaced_words, unprotected
from sordino.store.ledger_rows import Account
from sordino.store.spending import over_runs, sentence
from sordino.store.store import RunRow, Store, unfinished
from sordino.trained.models import load_models
from sordino.util.formatting import delta_text

WHO = {
    "outsider": "anybody who sees the trained models that are published, and sums over clients",
    "peer": "another client, which also knows its own part of the noise",
    "server": "whoever runs the server, and sees every message of every client",
}
NAMED = 12
"""How many clients are named."""
EACH_ITS_OWN = "(named by each site)"
"""Words in place of the label's column where each site names it itself."""
UNBOUNDED = "without bound"
"""What an infinite epsilon is called here."""


@dataclass(frozen=True)
class Observer:
    """What somebody could have learned."""

    name: str
    who: str
    epsilon: float | None
    """None where there is no bound."""
    attack: float
    """How often the best attack guesses right, of a coin's 0.5."""


@dataclass(frozen=True)
class Leaving:
    """One kind of thing that left clients."""

    name: str
    what: str
    clients: int
    most: int
    """How often from the client that sent it most often."""
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
    """Everything that stands on the page."""

    run: str
    date: str
    version: str
    method: str
    data: str
    clients: list[str]
    others: int
    """Clients beside those that are named."""
    records: int | None
    network: str
    parameters: int
    rounds: int
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
    unit: str
    neighbours: str
    """The two worlds that the figures compare."""
    rows_not_persons: str
    """Words on rows and persons, with the epsilon of several rows; empty at client level."""
    delta: float
    planned_for: str
    observers: list[Observer]
    leaving: list[Leaving]
    replaced: float | None
    """At record level, the epsilon of a record that is exchanged for another."""
    replaced_at: float | None
    """The delta at which that holds."""
    not_covered: list[str]
    notes: list[str]
    together: str | None
    """What all runs on the same people have come to."""
    head: str
    rows: int


def statement_of(store: Store, run: str) -> Statement:
    """The statement on a finished run."""
    account = Account.of(store, run)
    row, summary = account.row, account.row.result
    if summary is None:
        raise unfinished(row, store.folder)
    models = load_models(run, store.folder)
    names = list(models.about.clients)
    simulated = not summary.get("deployed", False)
    schema = models.about.meaning.schema
    protects = protection(row.unit, summary.get("epsilon_rows"))
    total = over_runs(store, row.people, row.unit, summary["delta"])
    return Statement(
        run=run,
        date=datetime.fromtimestamp(row.created, UTC).strftime("%d %B %Y, %H:%M UTC"),
        version=models.about.version,
        method=called(row.configuration),
        data=str(row.configuration["data"]) if simulated else summary.get("trial_of", AT_SITES),
        clients=names[:NAMED],
        others=max(0, len(names) - NAMED),
        records=summary.get("records"),
        network=models.about.network,
        parameters=summary["parameters"],
        rounds=summary["rounds_done"],
        classes=list(models.about.meaning.task.groups),
        predicted=None if schema is None or not _names_label(row.configuration, simulated) else schema.label_name,
        columns=[] if schema is None else _columns(schema, row.configuration, simulated),
        shape=models.about.shape,
        simulated=simulated,
        trial="trial_of" in summary,
        unit=row.unit,
        neighbours=protects["neighbours"],
        rows_not_persons=protects.get("rows_not_persons", ""),
        delta=summary["delta"],
        planned_for=summary["protect_from"],
        observers=[
            Observer(view, who, summary["epsilon"][view], summary["attack_accuracy"][view]) for view, who in WHO.items()
        ],
        leaving=_leaving(account),
        replaced=summary.get("epsilon_replace_one"),
        replaced_at=summary.get("delta_replace_one"),
        not_covered=[ended(one) for one in summary["not_covered"]],
        notes=summary["notes"],
        together=sentence(total, summary["protect_from"]),
        head=account.head,
        rows=len(account.ledger.rows),
    )


def _names_label(configuration: Mapping[str, Any], simulated: bool) -> bool:
    """Whether all clients call the label's column the same; without a schema each site has a name of its own for it."""
    return simulated or configuration["table"] is not None


def _columns(schema: Schema, configuration: Mapping[str, Any], simulated: bool) -> list[DataColumn]:
    """Every declared column."""
    found = []
    for name, column in schema.columns.items():
        is_label = isinstance(column, Label)
        occurring = is_label and configuration["table"] is None and configuration["labels"] is None
        source = "declared as public" if column.public and not occurring else "read from the records"
        if isinstance(column, Number) and column.released is not None:
            source = f"scaled by what {column.released} released"
        shown = EACH_ITS_OWN if is_label and not _names_label(configuration, simulated) else name
        found.append(DataColumn(shown, column.kind, column.describe(), str(getattr(column, "missing", "")), source))
    return found


def _leaving(account: Account) -> list[Leaving]:
    """What left, each kind once, in the order in which it first did."""
    described = _described(account.row)
    rows = [row for row in account.ledger.rows if not row.exposed]
    found = []
    for name in dict.fromkeys(row.release for row in rows):
        mine = [row for row in rows if row.release == name]
        each = Counter(client for row in mine for client in row.clients().tolist())
        covered = not any(row.reason for row in mine)
        found.append(Leaving(name, described.get(name, ""), len(each), max(each.values(), default=0), covered))
    return found


def _described(row: RunRow) -> dict[str, str]:
    """What a method says of what it sends; nothing where the method is not there any more."""
    with contextlib.suppress(UserError):
        method = Experiment.make(row.configuration).build_method()
        return {name: release.describe() for step in method.steps().values() for name, release in step.items()}
    return {}


def sentences(found: Statement) -> dict[str, list[str]]:
    """The page as paragraphs, by heading; figures and lists apart."""
    whom = ", ".join(found.clients) + (f" and {found.others} more" if found.others else "")
    column = f" in the column {found.predicted}" if found.predicted else ""
    records = f" They hold {found.records:,} training records together." if found.records else ""
    how = "This run was made on the clients' own machines: their records never left them."
    if found.trial:
        how = (
            "This run was a trial: the server and all sites were processes of one machine, on which all data lay. This "
            "page says what left each site."
        )
    if found.simulated:
        how = (
            "This run was a simulation: all data lay on one machine, and this page says what would have left each "
            "client."
        )
    return {
        "What was done": [
            f"A model of the kind {found.network} with {found.parameters:,} parameters was trained to tell "
            f"{_listed(found.classes)} apart{column}, with the method {found.method}, in {found.rounds} rounds, on "
            f"{found.data}, the data of {len(found.clients) + found.others} clients: {whom}.{records}",
            how,
        ],
        "What a record holds": [_holds(found)],
        "What left each client": [_left(found)],
        "What somebody could learn from it": [
            *_protected(found),
            *([found.together] if found.together else []),
        ],
    }


def _holds(found: Statement) -> str:
    """Sentences on what is known of the records, and who declared it."""
    by = "" if found.simulated else " The experiment declares this, and every site took part with data that fit it."
    if found.columns:
        return f"These are all columns of the clients' tables; one that is an id is dropped.{by}"
    shape = " x ".join(str(size) for size in found.shape)
    return f"A record is an array of shape {shape}, whose numbers have no names.{by}"


def _left(found: Statement) -> str:
    """How what left was treated."""
    if not found.leaving:
        return "Nothing left any client."
    covered = "What is covered by noise was bounded there, and the noise added."
    bare = "Nothing of it is covered by noise."
    return (
        "Records never leave a client. What does leave passes one gate and is written into a ledger before it is sent. "
        f"{covered if any(one.covered for one in found.leaving) else bare}"
    )


def _protected(found: Statement) -> list[str]:
    """What the figures protect, and from what."""
    attack = (
        f"The best attack is the highest share of right guesses whether {_question(found.unit)}, for whoever can be "
        "told best; a coin is right in 50 % of cases."
    )
    if unprotected({one.name: one.epsilon for one in found.observers}):
        return [f"{UNPROTECTED}. {attack}"]
    unit, planned = (
        ("one client as a whole", f"The noise was planned against the {found.planned_for}.")
        if found.unit == "client"
        else ("one record of a client", "Each client adds noise of its own, which holds against every observer.")
    )
    return [
        f"The figures protect {unit}, at delta = {delta_text(found.delta)}, which is the probability with which more "
        f"than epsilon may show. Each observer is taken to know everything else about everybody. {attack} {planned}",
        *_replaced(found),
    ]


def _question(unit: str) -> str:
    return "a client took part" if unit == "client" else "a record was among those trained on"


def _replaced(found: Statement) -> list[str]:
    """What neighbours the figures are for."""
    compared = f"They compare two worlds. Neighbours: {found.neighbours}."
    if found.unit == "client":
        return [compared]
    exchanged = replaced_words(found.replaced, found.replaced_at, found.delta, UNBOUNDED)
    return [
        f"{compared} Records are counted as they were read. Replacing one record's contents by others counts as "
        f"removing them and adding others: epsilon is then at most {exchanged}.",
        found.rows_not_persons,
    ]


def _listed(names: list[str]) -> str:
    shown = names[:NAMED]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 and not more else ", ".join(shown) + more
