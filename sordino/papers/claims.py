"""Statistical test of a paper's claim ("above every rival") in one column of a reproduced table, and the table's rows.

Methods with equal seeds meet equal records, so they are compared seed by seed. A claim says "above every rival": it
holds in a column where each single interval lies above zero, for which no correction is needed, because all of them
must; where a paper proposes several rows, any of which may do, they share the error. It is refuted where each proposed
row has an interval below zero that holds together with all others of the column (Bonferroni).

A column is not tested where it cannot tell: where the plan switched off what the paper proposes, where rows pass over
the records more or less often, and where training alone is as good as every row, so that nothing that is shared
matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sordino.study.sweep import contender
from sordino.study.verdict import Difference, Sample, difference

ALONE = "local"
LOWER = ("loss", "rounds", "seconds")
"""Measures of which less is better."""
UNTESTED = {
    "seconds": "times depend on the machine",
    "personal-share": "a share of personal parameters is neither good nor bad",
}
"""Measures that no claim is tested by, with the reason."""
Kind = Literal["published", "paper", "sound"]
"""Kinds of figures: the number that the paper prints (`published`), our run of the mechanism as published (`paper`),
and our run of the mechanism whose epsilon holds (`sound`), at equal true epsilon."""
Answer = Literal["holds", "refuted", "not shown", "not tested"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRow:
    """Row of a reproduced table in one column."""

    row: str
    """Name of the row in the paper's table."""
    column: str
    """Name of the column."""
    method: str
    """Method with its settings, the tuned ones included."""
    ours: bool
    """Whether the paper proposes it."""
    added: bool = False
    """Whether it is not in the paper's table: then no claim is made against it."""
    measure: str
    """Figure that the column prints."""
    published: float | None
    """Number that the paper prints."""
    nominal: str | None
    """Epsilon that the paper names."""
    sound: float | None
    """Mean over seeds at equal true epsilon; None where a target was not reached with every seed."""
    sound_by_seed: list[float | None]
    """Figure of each seed."""
    sound_interval: list[float] | None
    """Confidence interval of the mean: low and high."""
    paper: float | None
    """Mean over seeds of the mechanism as published."""
    paper_by_seed: list[float | None]
    """Figure of each seed."""
    paper_interval: list[float] | None = None
    """Confidence interval of the mean: low and high."""
    epsilon: float | None
    """True epsilon of the sound variant for the paper's observer; None where it is infinite."""
    delta: float | None = None
    """Delta at which `epsilon` holds."""
    unit: str | None
    """Unit that `epsilon` protects."""
    paper_epsilon: float | None
    """True epsilon of the mechanism as published; None where it is infinite."""
    not_as_published: str
    """Reason why it cannot be run as published; empty where it can."""
    passes: int | None = None
    """Passes over a client's records in a round; None in documents that did not store it."""
    planned_away: list[str] = dataclasses.field(default_factory=list)
    """Parts of the method that the plan switched off, because the budget cannot pay for them."""
    runs: list[str] = dataclasses.field(default_factory=list)
    """Names of its runs."""

    def figure(self, kind: Kind) -> float | None:
        """Figure as `published`, of the variant `paper`, or of the variant `sound`."""
        return {"published": self.published, "paper": self.paper, "sound": self.sound}[kind]

    def by_seed(self, variant: str) -> list[float | None]:
        """Figures of a variant, one per seed."""
        return self.sound_by_seed if variant == "sound" else self.paper_by_seed

    def interval(self, kind: str) -> list[float] | None:
        """Confidence interval of a variant's figure; None for printed numbers, which have none."""
        return {"paper": self.paper_interval, "sound": self.sound_interval}.get(kind)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the row."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TableRow:
        """Row that a document of `to_dict` holds."""
        return cls(**document)


def rows_of(document: Mapping[str, Any]) -> list[TableRow]:
    """Rows of a reproduced table's document."""
    return [TableRow.from_dict(row) for row in document["rows"]]


@dataclasses.dataclass(frozen=True)
class ClaimVerdict:
    """Verdict on a claim in one column."""

    column: str
    measure: str
    answer: Answer
    differences: list[Difference]
    """Proposed rows against each rival, with the intervals that the answer rests on: where the claim holds, each by
    itself; elsewhere, all of them together."""
    alone: list[Difference]
    """Proposed rows against training alone."""
    added: list[Difference] = dataclasses.field(default_factory=list)
    """Proposed rows against rows that the paper's table does not have, each interval by itself."""
    why: str = ""
    """Reason why the column tests nothing, in words; empty where it does."""
    left_out: list[str] = dataclasses.field(default_factory=list)
    """Rows that would be rivals if they passed over the records as often, in words."""

    def nearest(self) -> Difference:
        """Difference of the proposed row that fares best, against its strongest rival."""
        against: dict[str, Difference] = {}
        for found in sorted(self.differences, key=lambda one: one.mean):
            against.setdefault(found.method, found)
        return max(against.values(), key=lambda one: one.mean)


def alone(row: TableRow) -> bool:
    """Whether a row is training alone, which is no rival, tuned or not."""
    return contender(row.method)[0] == ALONE


def rivals(rows: Sequence[TableRow], ours: TableRow) -> list[TableRow]:
    """Rows of a paper's column that a proposed one is claimed to be above."""
    return [row for row in comparable(rows, ours) if not row.added]


def comparable(rows: Sequence[TableRow], ours: TableRow) -> list[TableRow]:
    """Rows of a column that a proposed one can be compared with on equal terms: they protect the same unit, pass over
    the records as often, and no infinite epsilon is compared with a finite one."""
    return [row for row in rows if not row.ours and not alone(row) and _on_equal_terms(ours, row)]


def why_untested(rows: Sequence[TableRow]) -> str:
    """Reason why a column cannot test its claim; empty where it can."""
    ours = [row for row in rows if row.ours and _complete(row)]
    off = [part for row in ours for part in row.planned_away]
    if off and all(row.planned_away for row in ours):
        return f"the budget cannot pay for {' and '.join(dict.fromkeys(off))}, so that the plan switched them off"
    rivals_of = [row for one in ours for row in rows if not row.ours and not alone(row) and _same_privacy(one, row)]
    if rivals_of and not any(comparable(rows, one) for one in ours):
        return "no rival passes over the records as often"
    for other in [row for row in rows if alone(row) and _complete(row)]:
        contenders = [row for row in rows if not alone(row) and _complete(row)]
        if contenders and all(_holds(row, other) for row in contenders):
            return "training alone lies within the interval of every row, so that nothing that is shared matters"
    return ""


def judge_claim(column: str, rows: Sequence[TableRow]) -> ClaimVerdict:
    """Judge the claim in a column of these rows."""
    measure = rows[0].measure
    if measure in UNTESTED:
        return ClaimVerdict(column, measure, "not tested", [], [], why=UNTESTED[measure])
    ours = [row for row in rows if row.ours and _complete(row)]
    pairs = [(one, rival) for one in ours for rival in rivals(rows, one) if _complete(rival)]
    single = [_difference(one, rival, column, len(ours)) for one, rival in pairs]
    together = [_difference(one, rival, column, len(pairs)) for one, rival in pairs]
    others = [row for row in rows if alone(row) and _complete(row)]
    more = [(one, row) for one in ours for row in comparable(rows, one) if row.added and _complete(row)]
    added = [_difference(one, row, column, 1) for one, row in more]
    against_alone = [_difference(one, other, column, 1) for one in ours for other in others]
    why = why_untested(rows)
    answer = "not tested" if why else _answer(single, together)
    decisive = single if answer == "holds" else together
    return ClaimVerdict(column, measure, answer, decisive, against_alone, added, why, _left_out(rows, ours))


def _left_out(rows: Sequence[TableRow], ours: Sequence[TableRow]) -> list[str]:
    """Rows that no proposed one is compared with only because they pass over the records more or less often."""
    found = []
    for row in rows:
        meets = [one for one in ours if not (row.ours or alone(row)) and _same_privacy(one, row)]
        if meets and not any(_on_equal_terms(one, row) for one in meets):
            found.append(f"{row.row} ({row.passes} passes a round, {meets[0].row} {meets[0].passes})")
    return found


def _holds(row: TableRow, other: TableRow) -> bool:
    """Whether a row's interval holds another row's mean."""
    interval, mean = row.sound_interval, other.sound
    return interval is not None and mean is not None and interval[0] <= mean <= interval[1]


def _on_equal_terms(ours: TableRow, row: TableRow) -> bool:
    return _same_privacy(ours, row) and (None in (ours.passes, row.passes) or ours.passes == row.passes)


def _same_privacy(ours: TableRow, row: TableRow) -> bool:
    protected = {one.unit for one in (ours, row) if one.epsilon != 0}
    return len(protected) < 2 and (row.epsilon is not None or ours.epsilon is None)


def _complete(row: TableRow) -> bool:
    """Whether a row has a figure for each seed: a target may not have been reached."""
    return bool(row.sound_by_seed) and None not in row.sound_by_seed


def _difference(row: TableRow, other: TableRow, column: str, comparisons: int) -> Difference:
    """Paired difference of two rows in shares of one, seed by seed."""
    sign = -1 if row.measure in LOWER else 1
    one, two = (
        side(found.row, column, [sign * value / 100 for value in found.sound_by_seed if value is not None])
        for found in (row, other)
    )
    return difference(one, two, comparisons)


def side(name: str, column: str, values: Sequence[float]) -> Sample:
    """One side of a comparison, as the test takes it: a figure for each seed."""
    return Sample(name, dict(enumerate(values)), {"column": column})


def in_words(found: Difference, measure: str) -> str:
    """Clause on the difference of two rows, in the units of the measure, with its interval; where less is better, it
    says so."""
    lower = measure in LOWER
    unit = {"loss": " of loss", "rounds": " rounds"}.get(measure, " points")
    unit += ", where less is better," if lower else ""
    sign = -100 if lower else 100
    text = f"{sign * found.mean:+.1f}{unit} against {found.against}"
    if found.low is None or found.high is None:
        return f"{text}, from one seed, so chance is not ruled out"
    low, high = sorted((sign * found.low, sign * found.high))
    told = f"{text}, interval {low:+.1f} to {high:+.1f}"
    if found.verdict != "no difference shown":
        return told
    return f"{told}; {(high - low) / 2:.1f} or more would have shown"


def _answer(single: Sequence[Difference], together: Sequence[Difference]) -> Answer:
    """Answer to a claim: whether one of the proposed rows is above all its rivals, or each of them is below a rival."""
    if not single or any(one.low is None for one in single):
        return "not tested"
    names = dict.fromkeys(one.method for one in single)
    if any(all(one.verdict == "better" for one in single if one.method == name) for name in names):
        return "holds"
    if all(any(one.verdict == "worse" for one in together if one.method == name) for name in names):
        return "refuted"
    return "not shown"
