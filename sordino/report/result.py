"""A run's summary as Python users meet it."""

from __future__ import annotations

from typing import Any

from sordino.report.tables import OBSERVERS, epsilon_text, percent


class RunResult(dict[str, Any]):
    """The summary of a run (`sordino.experiment.summary.Summary`), told in short where it is shown."""

    def __repr__(self) -> str:
        cost = epsilon_text(self["epsilon"][self["protect_from"]])
        return (
            f"<{self['run']}: {self['method']}, personal accuracy {percent(self['accuracy']['personal'])}, epsilon "
            f"{cost} for the {self['protect_from']}>"
        )

    def _repr_markdown_(self) -> str:
        accuracy = [
            ("personal models", self["accuracy"]["personal"]),
            ("worst client", self["accuracy"]["personal_worst"]),
            ("models at round start", self["accuracy"]["start"]),
            ("global model", self["accuracy"]["global"]),
        ]
        lines = [f"**{self['run']}**: {self['method']}, {self['rounds']} rounds, {self['clients']} clients", ""]
        lines += ["| accuracy | |", "|---|---|", *(f"| {name} | {percent(value)} |" for name, value in accuracy), ""]
        lines += ["| observer | epsilon |", "|---|---|"]
        lines += [f"| {view} | {epsilon_text(self['epsilon'][view])} |" for view in OBSERVERS]
        lines += ["", f"at delta = {self['delta']:.3g}, protecting one {self['unit']}"]
        lines += ["", *(f"Not covered: {reason}" for reason in self["not_covered"])]
        return "\n".join(lines)
