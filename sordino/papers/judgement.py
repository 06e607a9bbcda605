"""Result of a reproduced table as a JSON document: means and intervals, tests of `claims`, and the verdict in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sordino.version
from sordino.papers.claims import TableRow, in_words, judge_claim, side
from sordino.papers.description import PaperColumn, PaperRow, Variant
from sordino.papers.formulas import repeat_figure
from sordino.papers.sources import source_digests
from sordino.papers.table_runs import TUNING_SEEDS, CellOutcome, ReproducedTable, curve_of
from sordino.study.sweep import contender
from sordino.study.tuning import sentences as tuning_sentences
from sordino.study.verdict import CONFIDENCE, difference

SHARES = ("personal", "global", "start", "personal-share")
"""Measures from 0 to 100 %."""


class ClaimJudgement:
    """Judgement of a table's claim."""

    def __init__(self, done: ReproducedTable) -> None:
        self._done = done
        self._table = done.table
        self.rows, self.columns = done.table.taken(done.options.scale)
        self._figures = [[self._row(row, column) for row in self.rows] for column in self.columns]
        self.by_column = [judge_claim(one.name, rows) for one, rows in zip(self.columns, self._figures, strict=True)]

    def outcome(self, row: PaperRow, column: PaperColumn, variant: Variant) -> CellOutcome | None:
        """Outcome of a row; None where it was not run."""
        return self._done.outcomes.get((row.name, column.name, variant))

    def document(self) -> dict[str, Any]:
        """JSON document of the reproduced table."""
        done, table = self._done, self._table
        settings = dict.fromkeys(table.setting_of(one) for one in self.columns)
        scale = done.options.scale
        return {
            "paper": done.paper.name,
            "table": table.name,
            "title": table.title,
            "claim": table.claim_at(scale),
            "scale": scale,
            "command": done.options.command(done.paper.name, table.name),
            "seeds": done.options.seed_count,
            "measure": table.measure,
            "observer": done.paper.view,
            "epsilon_note": done.paper.epsilon_note,
            "version": sordino.version.VERSION,
            "sources": source_digests({contender(row.method)[0] for rows in self._figures for row in rows}),
            "settings": {
                name: {"keys": _merge(done.paper.sources(name, scale)), "departs": done.paper.departs(name, scale)}
                for name in settings
            },
            "published_note": table.published_note,
            "note": table.decisive().note if scale == "medium" else "",
            "curves": self._curves(),
            "rows": [row.to_dict() for rows in self._figures for row in rows],
            "differences": [
                found.to_dict() for one in self.by_column for found in (*one.differences, *one.added, *one.alone)
            ],
            "answers": {one.column: one.answer for one in self.by_column},
            "untested": {one.column: one.why for one in self.by_column if one.why},
            "figures": [repeat_figure(figure) for figure in table.figures],
            "tuning_seeds": TUNING_SEEDS if done.tuned else 0,
            "tuned": [{"column": name, **one.to_dict()} for name, found in done.tuned.items() for one in found],
            "tuning": tuning_sentences([one for found in done.tuned.values() for one in found], done.paper.view),
            "headline": self._headline().name,
            "verdict": self.verdict(),
        }

    def verdict(self) -> str:
        """Sentences on the claim."""
        told = [*self._claim(), *self._left_out(), *self._added(), *self._alone(), *self._repeated()]
        return " ".join(told) if told else "Nothing is claimed here that a test could show."

    def _curves(self) -> list[dict[str, Any]]:
        """Curves from budgets to thresholds that rows name, and how well each fits its points."""
        named = {row.name: contender(row.method)[1].get("curve") for row in self.rows}
        found = {row: curve_of(self._done.paper, str(name)) for row, name in named.items() if name is not None}
        return [
            {
                "row": row,
                "kind": curve.kind,
                "low": curve.low,
                "high": curve.high,
                "determination": curve.determination,
                "points": curve.provenance.get("points"),
                "simulated": curve.provenance.get("simulated"),
            }
            for row, curve in found.items()
        ]

    def _row(self, row: PaperRow, column: PaperColumn) -> TableRow:
        sound, paper = (self.outcome(row, column, variant) for variant in ("sound", "paper"))  # type: ignore[arg-type]
        mean, by_seed, interval = self._mean(sound, row, column, "sound")
        paper_mean, paper_by_seed, paper_interval = self._mean(paper, row, column, "paper")
        return TableRow(
            row=row.name,
            column=column.name,
            method=sound.method if sound else row.method,
            ours=self._table.proposes(row, column),
            added=row.added,
            measure=self._table.measured(column),
            published=self._table.printed(row, column),
            nominal=column.nominal,
            sound=mean,
            sound_by_seed=by_seed,
            sound_interval=interval,
            paper=paper_mean,
            paper_by_seed=paper_by_seed,
            paper_interval=paper_interval,
            epsilon=sound.epsilon if sound else None,
            delta=sound.delta if sound else None,
            unit=sound.unit if sound else None,
            paper_epsilon=paper.epsilon if paper else None,
            not_as_published=row.unpublished or column.unpublished,
            passes=sound.passes if sound else None,
            planned_away=list(sound.planned_away) if sound else [],
            runs=[*(sound.runs if sound else []), *(paper.runs if paper else [])],
        )

    def _mean(
        self, outcome: CellOutcome | None, row: PaperRow, column: PaperColumn, variant: Variant
    ) -> tuple[float | None, list[float | None], list[float] | None]:
        """Mean over seeds, figure of each seed, and interval of the mean; None where there is none."""
        values = self._values(outcome, row, column, variant) if outcome else []
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if values and len(known) == len(values) else None
        share = self._table.measured(column) in SHARES
        return mean, values, _interval(known, share) if mean is not None and len(known) > 1 else None

    def _values(self, outcome: CellOutcome, row: PaperRow, column: PaperColumn, variant: Variant) -> list[float | None]:
        """Figure of each seed; seconds are a ratio to those of the reference row."""
        if self._table.measured(column) != "seconds":
            return outcome.values
        reference = self._done.outcomes.get((self._table.reference, column.name, variant))
        if reference is None:
            return outcome.values
        return [_ratio(one, other) for one, other in zip(outcome.values, reference.values, strict=True)]

    def _headline(self) -> PaperColumn:
        named = [column for column in self.columns if column.name == self._table.headline]
        return named[0] if named else self.columns[0]

    def _claim(self) -> list[str]:
        columns = [one for one in self.by_column if one.differences and not one.why]
        untested = [f"{one.column} is not tested: {one.why}." for one in self.by_column if one.why]
        if not columns:
            return untested
        counts = Counter(one.answer for one in columns)
        seeds = self._done.options.seed_count
        many = f"{len(columns)} column{'s' if len(columns) != 1 else ''}"
        told = [
            f"{self._terms()} {self._ours()} is above every rival in {counts['holds']} of {many}, below one or "
            f"more in {counts['refuted']}, and no difference is shown in {counts['not shown']} ({seeds} seeds, "
            f"{CONFIDENCE:.0%} intervals)."
        ]
        head = next((one for one in columns if one.column == self._headline().name), columns[0])
        found = head.nearest()
        tested = f": {found.verdict}" if found.low is not None else ""
        told.append(f"{head.column}: {found.method} {in_words(found, head.measure)}{tested}.")
        return [*told, *untested]

    def _left_out(self) -> list[str]:
        names = dict.fromkeys(name for one in self.by_column for name in one.left_out)
        return [f"Not compared, because of other numbers of passes over the records: {', '.join(names)}."] * bool(names)

    def _added(self) -> list[str]:
        head = next(one for one in self.by_column if one.column == self._headline().name)
        return [
            f"{head.column}: {found.method} {in_words(found, head.measure)}, which is not in the paper's table."
            for found in head.added
        ]

    def _terms(self) -> str:
        """First words of the verdict: at equal true epsilon, or without privacy."""
        ours = [
            self.outcome(row, column, "sound")
            for column in self.columns
            for row in self.rows
            if self._table.proposes(row, column)
        ]
        private = any(one is not None and one.epsilon is not None for one in ours)
        return "At equal true epsilon" if private else "Without privacy"

    def _alone(self) -> list[str]:
        found = [difference for one in self.by_column for difference in one.alone]
        if not found:
            return []
        counts = Counter(one.verdict for one in found)
        return [
            f"Against training alone, which spends no privacy, it is better in {counts['better']} of {len(found)} "
            f"comparison{'s' if len(found) != 1 else ''} and worse in {counts['worse']}."
        ]

    def _repeated(self) -> list[str]:
        figures = [repeat_figure(figure) for figure in self._table.figures]
        if not figures:
            return []
        held = sum(figure["holds"] for figure in figures)
        if len(figures) == 1:
            return [f"The one printed number that follows from a formula {'holds' if held else 'does not hold'}."]
        return [f"Of {len(figures)} printed numbers that follow from formulas {held} hold{'s' if held == 1 else ''}."]

    def _ours(self) -> str:
        names = {row.name for row in self.rows for one in self.columns if self._table.proposes(row, one)}
        return names.pop() if len(names) == 1 else "what the paper proposes"


def _interval(values: Sequence[float], share: bool) -> list[float]:
    """Student's interval of a mean over seeds; of a share, as far as it lies from 0 to 100 %."""
    found = difference(side("", "", values), side("", "", [0.0] * len(values)))
    assert found.low is not None
    assert found.high is not None
    return [max(0.0, found.low), min(100.0, found.high)] if share else [found.low, found.high]


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _merge(sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the keys of several sources, later ones winning."""
    merged: dict[str, Any] = {}
    for source in sources:
        for key, value in source.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = _merge([merged[key], value]) if both else value
    return merged
