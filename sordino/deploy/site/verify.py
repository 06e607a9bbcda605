"""A site's ledger for whoever has to check it: its rows, and whether they are whole, paid for and within the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.deploy.protocol import keys
from sordino.deploy.site.judging import run_name
from sordino.deploy.site.ledger import Entry, SiteLedger, last_noted, row_from
from sordino.deploy.site.rules import SitePolicy, read_rules
from sordino.deploy.site.spending import ROUNDING, SiteSpending
from sordino.deploy.site.witness import Witness, WitnessError
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.store.ledger_rows import COLUMNS as OF_RUNS
from sordino.store.ledger_rows import row_document
from sordino.util.formatting import finite_or_none, round_up

COLUMNS = ("position", "kind", "run", "attempt", *(name for name in OF_RUNS if name not in ("position", "owners")))
"""Columns of a row for other programs; those behind `attempt` are of releases."""


@dataclass(frozen=True)
class SiteVerdict:
    """Check of a site's ledger."""

    site: str
    whole: bool
    """Whether the chain is unbroken and every table's rows are as they were written; a site where they are not is
    refused before."""
    rows: int
    head: str
    epsilon: dict[View, float | None]
    """Epsilon over all runs for each observer, computed from the rows; None where it is infinite."""
    delta: float
    disagreements: list[str]
    """Sentences on what does not agree."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the check."""
        return asdict(self)


def verify_site(folder: Path) -> SiteVerdict:
    """Check the ledger of the site in `folder`; an altered one raises `AlteredError`.

    Beyond the chain of hashes: the witness outside of the folder has seen no other end; the rules are those that the
    ledger knows; every release belongs to a run; what left of a run's records costs, computed anew from its rows, no
    more than the run reserved; and all runs together keep to the budget.
    """
    policy = read_rules(folder)
    rules = policy.rules
    with SiteLedger(folder) as ledger, ledger.snapshot():
        ledger.check()
        entries, head = ledger.entries(), ledger.head()
        known = {one["run"] for one in ledger.runs()}
        wrong = _witness_disagreements(Witness.of(folder, rules, ledger.fact("identity")), ledger)
        wrong += _rules_disagreements(policy, entries, ledger.fact("secret"))
    for run in dict.fromkeys(one.content["ask"][0] for one in entries if one.kind == "release"):
        if run not in known:
            wrong.append(f"Something left for the run {run_name(run)!r}, in which this site never enrolled.")
        wrong += _reservation_disagreements(run, entries)
    spent = {view: SiteSpending.of(entries, view) for view in VIEWS}
    if not spent[policy.view].fits(rules):
        figure = spent[policy.view].by_rules(rules)
        wrong.append(
            f"Over all runs epsilon is {_words(figure)} for the {policy.view}, but max_epsilon is "
            f"{rules.max_epsilon:g}."
        )
    epsilon = {view: finite_or_none(one.by_rules(rules)) for view, one in spent.items()}
    return SiteVerdict(rules.name, True, head.position, head.link.hex(), epsilon, rules.max_delta, wrong)


def _witness_disagreements(witness: Witness, ledger: SiteLedger) -> list[str]:
    try:
        witness.check(ledger)
    except WitnessError as error:
        return [str(error)]
    return []


def _rules_disagreements(policy: SitePolicy, entries: Sequence[Entry], secret: bytes) -> list[str]:
    if last_noted(entries, "rules") in (None, policy.digest(secret)):
        return []
    return [
        "The rules in site.toml, or the roster, are not those that the ledger last noted: `sordino join` notes them."
    ]


def _reservation_disagreements(run: str, entries: Sequence[Entry]) -> list[str]:
    """Sentences on a run whose records have paid more than it reserved, or which reserved nothing."""
    rows = [row_from(one) for one in entries if one.kind == "release" and one.content["ask"][0] == run]
    of_records = [row for row in rows if row.pool]
    if not of_records:
        return []
    reserved = [one.content for one in entries if one.kind == "reserve" and one.content["run"] == run]
    if not reserved:
        return [f"The run {run_name(run)!r} released something of records, but reserved nothing."]
    content = reserved[-1]
    unit = Unit(content.get("unit", Unit.RECORD))
    paid = paid_by_records(of_records, content["delta"], unit, content.get("sites", 1))
    wrong = []
    for view in VIEWS:
        most = content.get("views", {}).get(view, content["epsilon"])
        if paid[view] > most * ROUNDING + 1e-6:
            wrong.append(
                f"For the {view} the run {run_name(run)!r} has cost epsilon {_words(paid[view])}, more than the "
                f"{_words(most)} that it reserved."
            )
    return wrong


def paid_by_records(rows: Sequence[Row], delta: float, unit: Unit = Unit.RECORD, sites: int = 1) -> dict[View, float]:
    """Epsilon of a run's releases of records for each observer, computed from the rows alone.

    Args:
        rows: the releases.
        delta: delta at which it holds.
        unit: what it protects: records, or persons.
        sites: of persons, the largest number of sites that know one.
    """
    clients = 1 + max(int(row.clients().max()) for row in rows)
    return Ledger(clients, unit, rows, sites).epsilon(delta)


def _words(figure: float) -> str:
    return "infinite" if finite_or_none(figure) is None else round_up(figure)


def ledger_documents(folder: Path) -> dict[str, Any]:
    """Ledger of the site in `folder` as a JSON document; `rows` have the keys of COLUMNS, releases all of them."""
    policy = read_rules(folder)
    with SiteLedger(folder) as ledger, ledger.snapshot():
        entries, head = ledger.entries(), ledger.head()
        links = [ledger.link(position + 1) or b"" for position in range(len(entries))]
        identity = keys.public_identity(ledger.fact("identity"))
    rows = [_document(place, entry, link) for place, (entry, link) in enumerate(zip(entries, links, strict=True))]
    site = {"site": policy.rules.name, "identity": identity.hex()}
    return site | {"unit": str(policy.rules.unit), "head": head.link.hex(), "rows": rows}


def _document(position: int, entry: Entry, link: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"position": position, "kind": entry.kind, "link": link.hex()}
    if entry.kind == "release":
        run, _, _, attempt = entry.content["ask"]
        release = row_document(position, row_from(entry), link)
        return {**release, **found, "run": run_name(run), "attempt": attempt}
    kept = {key: value for key, value in entry.content.items() if key not in ("random", "ask")}
    run = entry.content.get("run") or next(iter(entry.content.get("ask", ())), None)
    return {**kept, **found, **({} if run is None else {"run": run_name(run)})}
