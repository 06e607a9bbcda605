"""Building blocks of privacy statements, for a run and for a site: observers, audit verdict, recipients, and the annex
for a data-protection impact assessment (Art. 35 GDPR)."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sordino.privacy.views import View
from sordino.report.statement_blocks import BLANK, Section, Table
from sordino.report.unit_words import UnitWords
from sordino.report.wording import attack_words, bound_words, epsilon_words

UNBOUNDED = "without bound"
"""Word for an infinite epsilon."""
FALSE_ALARMS = (0.001, 0.01, 0.1)
"""Shares of wrong suspicions for which statements say how many are found."""
CURVE = (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, *(place / 20 for place in range(4, 21)))
"""Shares of wrong suspicions at which the curve of a picture is drawn."""
SHORT: dict[View, str] = {
    "outsider": "anybody with the models",
    "peer": "another client",
    "server": "whoever runs the server",
}
"""Observers in two or three words."""
STAND_INS = (
    "FOLDER stands for tables that need no protection, one file for each client, with a column of persons (`python "
    "examples/hospitals.py FOLDER` makes some), SCHEMA.toml for their description (`sordino data schema`)."
)
"""Sentence beside a command with stand-ins for data."""
PERSONAL = "A personal model stays at its client. Anybody who is given one may learn more about that client's records."
WITHDRAWAL = (
    "Leave the person's rows out of the data: later runs do not see them. What has left cannot be called back, and a "
    "model that was trained is not changed by that; the figures say how much it can tell."
)
ABOVE_ALL = "above all, a client's own (personal) model must stay with it."
NO_SUBGROUPS = (
    "No group of persons (by age, sex or origin, say) was judged separately: nothing of that kind was paid for. Each "
    "site can do it with its own records."
)


@dataclass(frozen=True)
class Observer:
    """One observer, and how much it could have learned."""

    name: View
    who: str
    epsilon: float | None
    """None where there is no bound."""
    attack: float
    """Share of correct guesses of the best attack; 0.5 is that of a coin."""
    mu: float | None
    """The mu of Gaussian differential privacy; None where it is infinite, or where one number does not say it."""
    hits: dict[str, float]
    """Share of present units that the best attack finds, by the share of absent ones that it suspects wrongly."""
    tradeoff: list[list[float]]
    """Points of the curve of both: wrong suspicions, hits."""


def observe(
    name: View, who: str, epsilon: float | None, attack: float, mu: float | None, hits: Callable[[float], float]
) -> Observer:
    """Describe an observer, `hits` being its share of hits at a share of false alarms."""
    known = {f"{rate:g}": hits(rate) for rate in FALSE_ALARMS}
    return Observer(name, who, epsilon, attack, mu, known, [[rate, hits(rate)] for rate in CURVE])


def of_thousand(share: float) -> str:
    """Format a share as a number of thousand, rounded up."""
    return f"{min(1000, math.ceil(round(share * 1000, 6))):,}"


def observer_cells(one: Observer) -> list[str]:
    """Cells of one observer: name, who that is, epsilon, best attack, hits."""
    figures = [epsilon_words(one.epsilon, UNBOUNDED), attack_words(one.attack, " %"), of_thousand(one.hits["0.001"])]
    return [one.name, one.who, *figures]


OBSERVER_HEAD = ["observer", "who that is", "epsilon", "best attack", "found, of 1,000"]
"""Head of the table of observers."""


def strength(observers: Sequence[Observer], planned_for: View, words: UnitWords) -> str:
    """Sentences on the best attack of one observer, for somebody who knows no statistics."""
    one = next(one for one in observers if one.name == planned_for)
    if one.epsilon is None:
        return f"Not at all: {SHORT[planned_for]} may find out for certain whether {words.secret}."
    most = max(observers, key=lambda other: other.attack)
    other = (
        f" ({re.split(';| and ', most.who)[0]}: {attack_words(most.attack, ' %')})" if most.attack > one.attack else ""
    )
    return (
        f"An attacker who knows all but whether {words.secret}, and sees what {SHORT[planned_for]} can see, guesses "
        f"right in at most {attack_words(one.attack, ' %')} of cases{other}; a tossed coin in 50 %. Naming only near "
        f"certainties (1 of 1,000 {words.absent} wrongly), it finds at most {of_thousand(one.hits['0.001'])} of "
        f"1,000 {words.present}; blind guessing: 1."
    )


def legend(observers: Sequence[Observer]) -> str:
    """Who the observers are, in few words; the server may need helpers."""
    known = SHORT | {one.name: re.split(";| and ", one.who)[0] for one in observers if one.name == "server"}
    known |= {one.name: re.split(";|,", one.who)[0] for one in observers if one.name == "peer"}
    return "; ".join(f"{one.name}: {known[one.name]}" for one in observers)


def risk(observers: Sequence[Observer], planned_for: View, words: UnitWords) -> str:
    """Sentence on the best attack of the observer whom noise was planned against."""
    one = next(one for one in observers if one.name == planned_for)
    if one.epsilon is None:
        return "No bound can be given."
    return (
        f"For {SHORT[planned_for]}: the best attack is right in {attack_words(one.attack, ' %')} of cases (a coin: "
        f"50 %), and finds {of_thousand(one.hits['0.001'])} of 1,000 {words.present} if it wrongly suspects 1 of 1,000 "
        f"{words.absent}."
    )


def tradeoff_sentences(observers: Sequence[Observer], words: UnitWords) -> list[str]:
    """Paragraphs on the trade-off of hits and wrong suspicions."""
    told = (
        f"An attacker can be careful: it then suspects few {words.absent}, and finds few {words.present}. The "
        f'column "found, of 1,000" says how many of 1,000 {words.present} are found at most by an attack that '
        f"wrongly suspects 1 of 1,000 {words.absent}. Blind guessing finds as many as it wrongly suspects."
    )
    known = {one.name: one.mu for one in observers if one.mu}
    figures = ", ".join(f"{value:.3g} for the {name}" for name, value in known.items())
    return [told, f"For experts: in terms of Gaussian differential privacy, mu is {figures}."] if known else [told]


def tradeoff_table(observers: Sequence[Observer], words: UnitWords) -> Table:
    """Table of hits: wrong suspicions, then the hits of each observer."""
    names = {"0.001": "1 of 1,000", "0.01": "10 of 1,000", "0.1": "100 of 1,000"}
    head = [f"wrongly suspected {words.plural}", *(f"found by the {one.name}, of 1,000" for one in observers)]
    return Table(head, [[names[key], *(of_thousand(one.hits[key]) for one in observers)] for key in names])


@dataclass(frozen=True)
class ReleasedKind:
    """One kind of value that left the clients."""

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
class Fact:
    """Something that is taken to be public, and who says that it is."""

    what: str
    who: str


@dataclass(frozen=True)
class Recipient:
    """Something that is handed on: to whom, and what the figures say of it."""

    what: str
    who: str
    covered: str


@dataclass(frozen=True)
class AnnexRow:
    """One question of an assessment: what is known here, and what the controller has to add."""

    topic: str
    known: str
    blank: str


def facts_table(found: Sequence[Fact]) -> Table:
    """Table of what is public."""
    return Table(["what", "who says so"], [[one.what, one.who] for one in found])


def recipients_table(found: Sequence[Recipient]) -> Table:
    """Table of who gets what."""
    return Table(["what", "who", "covered by"], [[one.what, one.who, one.covered] for one in found])


@dataclass(frozen=True)
class AuditedView:
    """Attack on what is claimed against one observer."""

    observer: str
    claimed: float | None
    bound: float | None
    """Epsilon is at least this, at 95 % confidence."""
    attack: str | None
    refuted: bool


@dataclass(frozen=True)
class AuditVerdict:
    """Verdict of a stored audit of the same method with the same hyper-parameters."""

    file: str
    date: str
    trials: int
    refuted: bool
    views: list[AuditedView]

    def sentences(self) -> list[str]:
        """Sentences on the verdict."""
        verdict = (
            "The audit REFUTED a claim: the figures of this page are not to be relied on."
            if self.refuted
            else "No attack came beyond what is claimed. That is no proof."
        )
        trials = f", {self.trials:,} times" if self.trials else ""
        scope = "Its data, rounds and epsilon may differ from this page's: its own table is below."
        return [f"The method was attacked with these hyper-parameters on {self.date}{trials}. {verdict} {scope}"]

    def rows(self) -> list[list[str]]:
        """Rows of the table: observer, claimed epsilon, epsilon that attacks reached, best attack, verdict."""
        return [
            [
                one.observer,
                epsilon_words(one.claimed, UNBOUNDED),
                f"at least {bound_words(one.bound)}",
                one.attack or "–",
                "refuted" if one.refuted else "not refuted",
            ]
            for one in self.views
        ]


AUDIT_HEAD = ["observer", "claimed epsilon", "an attack reached", "best attack", "verdict"]


def find_audit(store: Path, called: str, variant: str, unit: str) -> AuditVerdict | None:
    """Newest audit in a store's folder `audits` of a method with the same settings; files that are none are ignored."""
    found: list[tuple[str, AuditVerdict]] = []
    for path in (store / "audits").glob("*.json") if (store / "audits").is_dir() else ():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            document = json.loads(path.read_text("utf-8"))
            if (document["called"], document["variant"], document["unit"]) == (called, variant, str(unit)):
                date = document.get("date") or datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
                found.append((date, _verdict(document, path, date)))
    return max(found, key=lambda one: one[0])[1] if found else None


def _verdict(document: Mapping[str, Any], path: Path, date: str) -> AuditVerdict:
    views = [
        AuditedView(name, view["claimed"], view["bound"], view.get("attack"), bool(view["refuted"]))
        for name, view in document["views"].items()
    ]
    day = datetime.fromisoformat(date).strftime("%d %B %Y")
    return AuditVerdict(path.name, day, int(document.get("trials", 0)), bool(document["refuted"]), views)


def annex_rows(
    records: str, measures: str, recipients: Sequence[Recipient], storage: str, withdrawal: str, risk: str
) -> list[AnnexRow]:
    """Annex for a data-protection impact assessment (Art. 35 GDPR): what is known here, and blanks.

    Args:
        records: sentences on the records.
        measures: sentences on what protects them.
        recipients: who gets what.
        storage: sentences on what is kept where.
        withdrawal: sentences on what can be done for somebody who withdraws.
        risk: sentences on what somebody could learn.
    """
    handed_on = " ".join(f"{one.what}: {one.who}." for one in recipients)
    anonymous = (
        "Whether the model counts as anonymous has to be judged case by case (EDPB Opinion 28/2024): it must be "
        "unlikely that personal data can be extracted from it, or got by asking it. The figures of this page are "
        "evidence for that judgement, not the judgement."
    )
    return [
        AnnexRow("Controller, processors, data-protection officer", "", "names, contracts"),
        AnnexRow(
            "Purposes", "Training a model; this page says of what kind.", "what the model is for, who decides by it"
        ),
        AnnexRow("Legal basis", "", "Art. 6 and, for health data, Art. 9 GDPR; ethics vote"),
        AnnexRow("Persons and records", records, "who these persons are, how many, how they were informed"),
        AnnexRow("Recipients", handed_on, "which of them, where, under which contract; transfers to third countries"),
        AnnexRow("Retention", storage, "how long records, models and ledgers are kept, who deletes them"),
        AnnexRow(
            "Withdrawal, objection, erasure", withdrawal, "how persons reach you, from which run on they are left out"
        ),
        AnnexRow("Measures", measures, "access, backups, training of staff"),
        AnnexRow("Remaining risk", risk, "whether that is acceptable for this purpose, and why"),
        AnnexRow("Is the model anonymous?", anonymous, "your judgement"),
    ]


def annex_section(rows: Sequence[AnnexRow]) -> Section:
    """Section of the annex, with blanks."""
    head = ["topic", "known here", "to be added by the controller"]
    table = Table(head, [[one.topic, one.known or "–", f"{one.blank}: {BLANK}"] for one in rows])
    return Section("Annex for a data-protection impact assessment", [table])
