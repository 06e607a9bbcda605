"""Results as Python users meet them: a run and a comparison, with a short display."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.errors import UserError
from sordino.privacy.views import VIEWS, View
from sordino.report.exports import markdown, records
from sordino.report.terminal.results import epsilon_text
from sordino.report.wording import (
    UNPROTECTED,
    neighbour_words,
    observer_of_figures,
    percent,
    protects_nothing,
    with_full_stop,
)
from sordino.store.run_summary import Summary
from sordino.store.spending import OverRuns
from sordino.store.store import Store
from sordino.study.compare import Comparison
from sordino.util.formatting import delta_text

if TYPE_CHECKING:
    import pandas


class RunResult(dict[str, Any]):
    """Result of a run for Python users: a dictionary with the keys of `sordino run --json`, and a short display.

    `summary` holds the same as typed fields (`sordino.store.run_summary.Summary`).
    """

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary.to_dict())
        self.summary = summary

    def __repr__(self) -> str:
        found = self.summary
        cost = epsilon_text(found.epsilon[found.protect_from])
        return (
            f"<{found.run}: {found.called}, personal accuracy {percent(found.accuracy['personal'])}, epsilon "
            f"{cost} for the {found.protect_from}>"
        )

    def _repr_markdown_(self) -> str:
        found = self.summary
        accuracy = [
            ("personal models", found.accuracy["personal"]),
            ("worst client", found.accuracy["personal_worst"]),
            ("models at round start", found.accuracy["start"]),
            ("global model", found.accuracy["global"]),
        ]
        lines = [f"**{found.run}**: {found.called}, {found.rounds} rounds, {found.clients} clients", ""]
        lines += ["| accuracy | |", "|---|---|", *(f"| {name} | {percent(value)} |" for name, value in accuracy), ""]
        lines += ["| observer | epsilon |", "|---|---|"]
        lines += [f"| {view} | {epsilon_text(found.epsilon[view])} |" for view in VIEWS]
        meaning = f"at delta = {delta_text(found.delta)}, protecting one {found.unit}"
        if protects_nothing(found.epsilon):
            lines += ["", UNPROTECTED]
        else:
            observer = observer_of_figures(found.epsilon, found.protect_from)
            lines += ["", " ".join([f"{meaning}.", *neighbour_words(found.unit, found.epsilon_rows, observer)])]
        lines += ["", *(f"Not covered: {with_full_stop(reason)}" for reason in found.not_covered)]
        return "\n".join(lines)


class ComparisonResult:
    """Result of a comparison for Python users; `comparison` holds it as typed fields."""

    def __init__(self, comparison: Comparison, store: Path) -> None:
        self.comparison, self.store = comparison, store

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each method at each point of the sweep, in the order asked for or, with `judge`, best
        first: the keys of `sordino compare --json` and the `curves` over rounds."""
        return [row.to_dict() for row in self.comparison.rows]

    @property
    def verdict(self) -> list[str]:
        """Sentences on what the rows show."""
        return self.comparison.verdict

    @property
    def differences(self) -> list[dict[str, Any]]:
        """Tests behind the verdict: paired differences over seeds."""
        return [one.to_dict() for one in self.comparison.differences]

    @property
    def over_runs(self) -> list[OverRuns]:
        """Composed cost of all runs of the store on the same people, for each unit that was protected."""
        return self.comparison.over_runs

    @property
    def sweep(self) -> list[str]:
        """Keys that the comparison goes through; a row's `at` has their values."""
        return self.comparison.sweep

    @property
    def tuned(self) -> list[dict[str, Any]]:
        """Settings chosen for each method, and what choosing them would have cost."""
        return [one.to_dict() for one in self.comparison.tuned]

    @property
    def same(self) -> dict[str, str]:
        """Names that were asked for and have no rows, each with the name of a row whose runs are the same."""
        return self.comparison.same

    def together(self, view: View) -> list[str]:
        """Sentences on what all runs on the same people cost together, for one observer."""
        return self.comparison.together(view)

    def document(self) -> dict[str, Any]:
        """The whole comparison for machines, without the curves, which the store has."""
        return self.comparison.document()

    def to_frame(self, by_seed: bool = False) -> pandas.DataFrame:
        """Table of the rows for pandas, which must be installed; `by_seed` gives one row for each run."""
        try:
            import pandas as pd
        except ImportError as error:
            raise UserError("Tables for pandas need pandas: pip install pandas.") from error
        return pd.DataFrame(records(self.comparison.rows, self.sweep, by_seed))

    def export(self, folder: str | Path) -> list[Path]:
        """Write all that a paper needs into a folder: tables of methods, runs, rounds and clients as CSV (and Parquet,
        where pyarrow is installed), pictures, and `results.bib`; returns the files."""
        from sordino.report.study_files import export_study

        with contextlib.closing(Store(self.store, must_exist=True)) as store:
            return export_study(self.comparison, store, Path(folder))

    def draw(self, picture: str | Path, title: str = "") -> Path:
        """Draw the comparison into a file (.png, .pdf or .svg; matplotlib must be installed): against the first key of
        the sweep, or over the rounds."""
        from sordino.report.figures import check_picture, comparison_picture

        path = Path(picture)
        if not check_picture(path):
            raise UserError('Pictures need matplotlib: pip install "sordino[report]".')
        comparison_picture(self.comparison.rows, self.sweep, path, title)
        return path

    def __repr__(self) -> str:
        return repr(self.comparison)

    def _repr_markdown_(self) -> str:
        return "\n\n".join([markdown(self.comparison.rows, self.sweep), *self.verdict])
