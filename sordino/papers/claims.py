"""Test of a claim in one column of a repeated table.

Methods with equal seeds meet equal records, so they are compared seed by seed. A claim says "above every rival": it
holds in a column where each single interval lies above zero, for which no correction is needed, because all of them
must; where a paper proposes several rows, any of which may do, they share the error. It is refuted where each proposed
row has an interval below zero that holds together with all others of the column (Bonferroni).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from sordino.study.sweep import contender
from sordino.study.verdict import Difference, Sample, difference

Figures = dict[str, Any]
"""Row of a table in one column, as its JSON document has it."""
ALONE = "local"
LOWER = ("loss", "rounds", "seconds")
"""Measures of which less is better."""
UNTESTED = ("seconds",)
"""Measures that depend on the machine."""
Answer = Literal["holds", "refuted", "not shown", "not tested"]


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

    def nearest(self) -> Difference:
        """Difference of the proposed row that fares best, against its strongest rival."""
        against: dict[str, Difference] = {}
        for found in sorted(self.differences, key=lambda one: one["mean"]):
            against.setdefault(found["method"], found)
        return max(against.values(), key=lambda one: one["mean"])


def alone(row: Figures) -> bool:
    """Whether a row is training alone, which is no rival, tuned or not."""
    return contender(row["method"])[0] == ALONE


def rivals(rows: Sequence[Figures], ours: Figures) -> list[Figures]:
    """Rows of a paper's column that a proposed one is claimed to be above."""
    return [row for row in comparable(rows, ours) if not row.get("added")]


def comparable(rows: Sequence[Figures], ours: Figures) -> list[Figures]:
    """Rows of a column that a proposed one can be compared with on equal terms: they protect the same unit, and no
    infinite epsilon is compared with a finite one."""
    return [row for row in rows if not row["ours"] and not alone(row) and _on_equal_terms(ours, row)]


def judge_claim(column: str, rows: Sequence[Figures]) -> ClaimVerdict:
    """Judge the claim in a column of these rows."""
    measure = rows[0]["measure"]
    if measure in UNTESTED:
        return ClaimVerdict(column, measure, "not tested", [], [])
    ours = [row for row in rows if row["ours"] and _complete(row)]
    pairs = [(one, rival) for one in ours for rival in rivals(rows, one) if _complete(rival)]
    single = [_difference(one, rival, column, len(ours)) for one, rival in pairs]
    together = [_difference(one, rival, column, len(pairs)) for one, rival in pairs]
    others = [row for row in rows if alone(row) and _complete(row)]
    more = [(one, row) for one in ours for row in comparable(rows, one) if row.get("added") and _complete(row)]
    added = [_difference(one, row, column, 1) for one, row in more]
    against_alone = [_difference(one, other, column, 1) for one in ours for other in others]
    answer = _answer(single, together)
    return ClaimVerdict(column, measure, answer, single if answer == "holds" else together, against_alone, added)


def _on_equal_terms(ours: Figures, row: Figures) -> bool:
    protected = {one["unit"] for one in (ours, row) if one["epsilon"] != 0}
    return len(protected) < 2 and (row["epsilon"] is not None or ours["epsilon"] is None)


def _complete(row: Figures) -> bool:
    """Whether a row has a figure for each seed: a target may not have been reached."""
    return bool(row["sound_by_seed"]) and None not in row["sound_by_seed"]


def _difference(row: Figures, other: Figures, column: str, comparisons: int) -> Difference:
    """Paired difference of two rows in shares of one, seed by seed."""
    sign = -1 if row["measure"] in LOWER else 1
    one, two = (
        side(found["row"], column, [sign * value / 100 for value in found["sound_by_seed"]]) for found in (row, other)
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
    text = f"{sign * found['mean']:+.1f}{unit} against {found['against']}"
    if found["low"] is None or found["high"] is None:
        return f"{text}, from one seed, so chance is not ruled out"
    low, high = sorted((sign * found["low"], sign * found["high"]))
    return f"{text}, interval {low:+.1f} to {high:+.1f}"


def _answer(single: Sequence[Difference], together: Sequence[Difference]) -> Answer:
    """Answer to a claim: whether one of the proposed rows is above all its rivals, or each of them is below a rival."""
    if not single or any(one["low"] is None for one in single):
        return "not tested"
    names = dict.fromkeys(one["method"] for one in single)
    if any(all(one["verdict"] == "better" for one in single if one["method"] == name) for name in names):
        return "holds"
    if all(any(one["verdict"] == "worse" for one in together if one["method"] == name) for name in names):
        return "refuted"
    return "not shown"
