"""What a repeated table says of its paper's claim.

Methods with equal seeds meet equal records, so they are compared seed by seed. A claim says "above every rival": it
holds in a column where each single interval lies above zero, for which no correction is needed, because all of them
must. It is refuted where an interval lies below zero that holds together with those of all other rivals (Bonferroni).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import sordino.version
from sordino.experiment.tuning import sentences as tuning_sentences
from sordino.experiment.verdict import CONFIDENCE, Difference, difference
from sordino.papers.description import Column, Row, Variant
from sordino.papers.formulas import repeated
from sordino.papers.study import Done, Outcome

ALONE = "local"
LOWER = ("loss", "rounds")
"""Measures of which less is better."""
SHARES = ("personal", "global", "start")
"""Measures from 0 to 100 %."""
UNTESTED = ("seconds",)
"""Measures that depend on the machine."""
Answer = Literal["holds", "refuted", "not shown", "not tested"]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A claim in one column."""

    column: str
    answer: Answer
    differences: list[Difference]
    """The proposed method against each rival, each interval by itself."""
    alone: list[Difference]
    """The proposed method against training alone."""


class Judgement:
    """The claim of a table, judged."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._table = done.table
        self.rows, self.columns = done.table.taken(done.options.scale)
        self.by_column = [self._column(column) for column in self.columns]

    def outcome(self, row: Row, column: Column, variant: Variant) -> Outcome | None:
        """What came of a row, or None where it was not run."""
        return self._done.outcomes.get((row.name, column.name, variant))

    def document(self) -> dict[str, Any]:
        """All of it for machines."""
        done, table = self._done, self._table
        settings = dict.fromkeys(table.setting_of(one) for one in self.columns)
        scale = done.options.scale
        return {
            "paper": done.paper.name,
            "table": table.name,
            "title": table.title,
            "claim": table.claim,
            "scale": scale,
            "command": done.options.command(done.paper.name, table.name),
            "seeds": done.options.seed_count,
            "measure": table.measure,
            "observer": done.paper.view,
            "version": sordino.version.VERSION,
            "settings": {
                name: {"keys": _merged(done.paper.sources(name, scale)), "departs": done.paper.departs(name, scale)}
                for name in settings
            },
            "published_note": table.published_note,
            "rows": [self._row(row, column) for column in self.columns for row in self.rows],
            "differences": [one for judged in self.by_column for one in (*judged.differences, *judged.alone)],
            "answers": {judged.column: judged.answer for judged in self.by_column},
            "figures": [repeated(figure) for figure in table.figures],
            "tuned": done.tuned,
            "tuning": tuning_sentences(done.tuned, done.paper.view),
            "headline": self._headline().name,
            "verdict": self.verdict(),
        }

    def verdict(self) -> str:
        """The judgement in sentences."""
        told = [*self._claim(), *self._alone(), *self._repeated()]
        return " ".join(told) if told else "Nothing is claimed here that a test could show."

    def _row(self, row: Row, column: Column) -> dict[str, Any]:
        sound, paper = (self.outcome(row, column, variant) for variant in ("sound", "paper"))  # type: ignore[arg-type]
        figures = self._figures(row, column)
        why = row.unpublished or column.unpublished
        return {
            "row": row.name,
            "column": column.name,
            "method": sound.method if sound else row.method,
            "ours": self._table.proposes(row, column),
            "measure": self._table.measured(column),
            "published": self._table.printed(row, column),
            "nominal": column.nominal,
            **figures,
            "epsilon": sound.epsilon if sound else None,
            "delta": sound.delta if sound else None,
            "unit": sound.unit if sound else None,
            "paper_epsilon": paper.epsilon if paper else None,
            "not_as_published": why,
            "runs": [*(sound.runs if sound else []), *(paper.runs if paper else [])],
        }

    def _figures(self, row: Row, column: Column) -> dict[str, Any]:
        """Mean, interval and single values, of the sound variant and of the published one."""
        found: dict[str, Any] = {}
        for variant in ("sound", "paper"):
            outcome = self.outcome(row, column, variant)  # type: ignore[arg-type]
            values = self._values(outcome, row, column, variant) if outcome else []  # type: ignore[arg-type]
            known = [value for value in values if value is not None]
            mean = sum(known) / len(known) if values and len(known) == len(values) else None
            found[variant] = mean
            found[f"{variant}_by_seed"] = values
            held = self._table.measured(column) in SHARES
            found[f"{variant}_interval"] = _interval(known, held) if mean is not None and len(known) > 1 else None
        return found

    def _values(self, outcome: Outcome, row: Row, column: Column, variant: Variant) -> list[float | None]:
        """What is printed for each seed; seconds as a ratio to those of the row that others are told beside."""
        if self._table.measured(column) not in UNTESTED:
            return outcome.values
        reference = self._done.outcomes.get((self._table.reference, column.name, variant))
        if reference is None:
            return outcome.values
        return [_ratio(one, other) for one, other in zip(outcome.values, reference.values, strict=True)]

    def _column(self, column: Column) -> Judged:
        ours = [row for row in self.rows if self._table.proposes(row, column)]
        rivals = [row for row in self.rows if row not in ours and row.method != ALONE]
        alone = [row for row in self.rows if row.method == ALONE]
        if self._table.measured(column) in UNTESTED or not ours:
            return Judged(column.name, "not tested", [], [])
        pairs = [(one, rival) for one in ours for rival in rivals]
        single = [found for pair in pairs if (found := self._difference(*pair, column, 1)) is not None]
        together = [found for pair in pairs if (found := self._difference(*pair, column, len(pairs))) is not None]
        against = [found for one in ours for row in alone if (found := self._difference(one, row, column, 1))]
        return Judged(column.name, _answer(ours, single, together), single, against)

    def _difference(self, row: Row, other: Row, column: Column, comparisons: int) -> Difference | None:
        """How far a row is above another, in shares of one, seed by seed; None where one has no such figures."""
        found = [self.outcome(one, column, "sound") for one in (row, other)]
        if any(one is None or None in one.values for one in found):
            return None
        protected = {one.unit for one in found if one is not None and one.epsilon != 0}
        if len(protected) > 1:  # their epsilons protect other things
            return None
        if found[0] is not None and found[1] is not None and found[1].epsilon is None and found[0].epsilon is not None:
            return None  # what spends an infinite epsilon is no rival of what spends a finite one
        measure = self._table.measured(column)
        sign = -1 if measure in LOWER else 1
        one, two = (
            _side(name, column.name, [sign * float(value or 0.0) / 100 for value in outcome.values])
            for name, outcome in zip((row.name, other.name), found, strict=True)
            if outcome is not None
        )
        return difference(one, two, comparisons)

    def _headline(self) -> Column:
        named = [column for column in self.columns if column.name == self._table.headline]
        return named[0] if named else self.columns[0]

    def _claim(self) -> list[str]:
        tested = [judged for judged in self.by_column if judged.differences]
        if not tested:
            return []
        counts = Counter(judged.answer for judged in tested)
        seeds = self._done.options.seed_count
        many = f"{len(tested)} column{'s' if len(tested) != 1 else ''}"
        told = [
            f"{self._terms()} {self._ours()} is above every rival in {counts['holds']} of {many}, below one or "
            f"more in {counts['refuted']}, and no difference is shown in {counts['not shown']} ({seeds} seeds, "
            f"{CONFIDENCE:.0%} intervals)."
        ]
        head = next((one for one in tested if one.column == self._headline().name), tested[0])
        nearest = min(head.differences, key=lambda one: one["mean"])
        told.append(f"{head.column}: {self._in_words(nearest)}")
        return told

    def _terms(self) -> str:
        """On which terms methods meet."""
        ours = [
            self.outcome(row, column, "sound")
            for column in self.columns
            for row in self.rows
            if self._table.proposes(row, column)
        ]
        private = any(one is not None and one.epsilon is not None for one in ours)
        return "At equal true epsilon" if private else "Without privacy"

    def _alone(self) -> list[str]:
        found = [one for judged in self.by_column for one in judged.alone]
        if not found:
            return []
        counts = Counter(one["verdict"] for one in found)
        return [
            f"Against training alone, which spends no privacy, it is better in {counts['better']} of {len(found)} "
            f"comparison{'s' if len(found) != 1 else ''} and worse in {counts['worse']}."
        ]

    def _repeated(self) -> list[str]:
        figures = [repeated(figure) for figure in self._table.figures]
        if not figures:
            return []
        held = sum(figure["holds"] for figure in figures)
        plural = "s" if len(figures) != 1 else ""
        return [
            f"Of {len(figures)} printed number{plural} that follow{'' if plural else 's'} from formulas, {held} hold."
        ]

    def _ours(self) -> str:
        names = {row.name for row in self.rows for one in self.columns if self._table.proposes(row, one)}
        return names.pop() if len(names) == 1 else "what the paper proposes"

    def _in_words(self, found: Difference) -> str:
        unit, scale = {"loss": ("", 100), "rounds": ("rounds fewer", 100)}.get(self._table.measure, ("points", 100))
        lead = f"{found['method']} against {found['against']} {scale * found['mean']:+.1f} {unit}".rstrip()
        if found["low"] is None or found["high"] is None:
            return f"{lead}, from one seed, so chance is not ruled out."
        return f"{lead}, interval {scale * found['low']:+.1f} to {scale * found['high']:+.1f}: {found['verdict']}."


def _answer(ours: Sequence[Row], single: Sequence[Difference], together: Sequence[Difference]) -> Answer:
    """Whether one of the proposed rows is above all rivals; whether each of them is below a rival."""
    if not single or any(one["low"] is None for one in single):
        return "not tested"
    names = [row.name for row in ours]
    if any(all(one["verdict"] == "better" for one in single if one["method"] == name) for name in names):
        return "holds"
    if all(any(one["verdict"] == "worse" for one in together if one["method"] == name) for name in names):
        return "refuted"
    return "not shown"


def _side(name: str, column: str, values: Sequence[float]) -> dict[str, Any]:
    """One side of a comparison, as the test takes it: a figure for each seed."""
    by_seed = [{"seed": seed, "personal": value} for seed, value in enumerate(values)]
    return {"method": name, "at": {"column": column}, "by_seed": by_seed}


def _interval(values: Sequence[float], share: bool) -> list[float]:
    """Student's interval of a mean over seeds; of a share, as far as it lies from 0 to 100 %."""
    found = difference(_side("", "", values), _side("", "", [0.0] * len(values)))
    assert found["low"] is not None
    assert found["high"] is not None
    return [max(0.0, found["low"]), min(100.0, found["high"])] if share else [found["low"], found["high"]]


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _merged(sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Keys of several sources as one, later ones winning."""
    merged: dict[str, Any] = {}
    for source in sources:
        for key, value in source.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = _merged([merged[key], value]) if both else value
    return merged
