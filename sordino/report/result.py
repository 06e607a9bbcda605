"""What Python users meet: a run's summary and a comparison, told in short where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.errors import UserError
from sordino.report.exports import markdown, records
from sordino.report.terminal.tables import OBSERVERS, epsilon_text
from sordino.report.wording import UNPROTECTED, compared_words, ended, percent, unprotected
from sordino.study.compare import Comparison
from sordino.util.formatting import delta_text

if TYPE_CHECKING:
    import pandas


class RunResult(dict[str, Any]):
    """The summary of a run (`sordino.experiment.result.Summary`), told in short where it is shown."""

    def __repr__(self) -> str:
        cost = epsilon_text(self["epsilon"][self["protect_from"]])
        return (
            f"<{self['run']}: {self._name()}, personal accuracy {percent(self['accuracy']['personal'])}, epsilon "
            f"{cost} for the {self['protect_from']}>"
        )

    def _name(self) -> str:
        """Name of its method; older runs lack the hyper-parameters."""
        return str(self.get("called", self["method"]))

    def _repr_markdown_(self) -> str:
        accuracy = [
            ("personal models", self["accuracy"]["personal"]),
            ("worst client", self["accuracy"]["personal_worst"]),
            ("models at round start", self["accuracy"]["start"]),
            ("global model", self["accuracy"]["global"]),
        ]
        lines = [f"**{self['run']}**: {self._name()}, {self['rounds']} rounds, {self['clients']} clients", ""]
        lines += ["| accuracy | |", "|---|---|", *(f"| {name} | {percent(value)} |" for name, value in accuracy), ""]
        lines += ["| observer | epsilon |", "|---|---|"]
        lines += [f"| {view} | {epsilon_text(self['epsilon'][view])} |" for view in OBSERVERS]
        meaning = f"at delta = {delta_text(self['delta'])}, protecting one {self['unit']}"
        if unprotected(self["epsilon"]):
            lines += ["", UNPROTECTED]
        else:
            lines += ["", " ".join([f"{meaning}.", *compared_words(self)])]
        lines += ["", *(f"Not covered: {ended(reason)}" for reason in self["not_covered"])]
        return "\n".join(lines)


class ComparisonResult(Comparison):
    """What came of a comparison."""

    @classmethod
    def of(cls, found: Comparison) -> ComparisonResult:
        """The same, for Python users."""
        return cls(**vars(found))

    def to_frame(self, by_seed: bool = False) -> pandas.DataFrame:
        """The rows as a table of pandas, which must be installed; `by_seed` gives one row for each run."""
        try:
            import pandas as pd
        except ImportError as error:
            raise UserError("Tables for pandas need pandas: pip install pandas.") from error
        return pd.DataFrame(records(self.rows, self.sweep, by_seed))

    def draw(self, picture: str | Path, title: str = "") -> Path:
        """Draw it into a file (.png, .pdf or .svg; matplotlib must be installed): against what it goes through, or over
        the rounds."""
        from sordino.report.figures import check_picture, comparison_picture

        path = Path(picture)
        if not check_picture(path):
            raise UserError('Pictures need matplotlib: pip install "sordino[report]".')
        comparison_picture(self.rows, self.sweep, path, title)
        return path

    def _repr_markdown_(self) -> str:
        return "\n\n".join([markdown(self.rows, self.sweep), *self.verdict])
