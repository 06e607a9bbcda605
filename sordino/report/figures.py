"""Line charts of comparisons, readable without colour, with each line's last value beside it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.errors import writing
from sordino.report.wording import method_name
from sordino.util.plotting import pyplot

if TYPE_CHECKING:
    from sordino.study.compare import ComparisonRow

PANELS = {
    "personal": "personal model, after training",
    "start": "model at round start",
    "global": "global model",
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
"""Palette of Okabe and Ito, which people with colour-blindness can tell apart."""
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
End = tuple[float, float, str]
"""End of a line (x, y) and its colour."""
GAP = 0.035
"""Smallest distance between two labels beside lines, as a share of the axis height."""


def comparison_picture(rows: Sequence[ComparisonRow], sweep: Sequence[str], path: Path, title: str = "") -> None:
    """Draw a comparison: against the first key of its sweep, or over the rounds."""
    if sweep:
        sweep_picture(rows, sweep, path, title)
    else:
        curves(rows, path, title)


def curves(rows: Sequence[ComparisonRow], path: Path, title: str = "") -> None:
    """Draw the accuracies of compared methods over the rounds: mean over seeds, and the range as a band."""
    figure, axes = _figure(len(PANELS), title)
    ends: list[list[End]] = [[] for _ in PANELS]
    for axis, key, mine in zip(axes, PANELS, ends, strict=True):
        for style, row in zip(_styles(), rows, strict=False):
            series = [[(r["round"] + 1, r[key]) for r in curve if r[key] is not None] for curve in row.curves]
            if not all(series):
                continue
            # A run may end before its last round, when budgets are used up.
            length = min(len(one) for one in series)
            rounds = [point[0] for point in series[0][:length]]
            values = np.array([[point[1] for point in one[:length]] for one in series])
            mine.append(_draw(axis, rounds, values, method_name(row), style))
    _finish(axes, "round", ends)
    _save(figure, axes, path)


def sweep_picture(rows: Sequence[ComparisonRow], sweep: Sequence[str], path: Path, title: str = "") -> None:
    """Draw the accuracies of compared methods against the first key of a sweep: mean over seeds, and the range as a
    band. Values of further keys become lines of their own."""
    key, *others = sweep
    values = list(dict.fromkeys(row.at[key] for row in rows))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = [float(value) for value in values] if numeric else list(range(len(values)))
    figure, axes = _figure(len(PANELS), title)
    lines: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        more = "".join(f", {other} {row.at[other]}" for other in others)
        lines.setdefault(f"{method_name(row)}{more}", []).append(row)
    ends: list[list[End]] = [[] for _ in PANELS]
    for axis, figure_key, mine in zip(axes, PANELS, ends, strict=True):
        for style, (name, found) in zip(_styles(), lines.items(), strict=False):
            seeds = [[one.accuracy[figure_key] for one in row.by_seed] for row in found]
            if any(value is None for one in seeds for value in one):
                continue
            x = [places[values.index(row.at[key])] for row in found]
            order = np.argsort(x)
            marked = style | {"marker": style["mark"]}
            mine.append(_draw(axis, np.array(x)[order].tolist(), np.array(seeds).T[:, order], name, marked))
        if numeric and min(places) > 0 and max(places) >= 4 * min(places):
            axis.set_xscale("log")
            axis.minorticks_off()
        axis.set_xticks(places, [f"{value:g}" if numeric else str(value) for value in values])
    _finish(axes, key.replace("_", " "), ends)
    _save(figure, axes, path)


def clients_picture(groups: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw the share of clients that reach at most each accuracy, one line per method; seeds are taken together."""
    figure, axis = pyplot().subplots(figsize=(6, 4), layout="constrained")
    for style, (name, values) in zip(_styles(), groups.items(), strict=False):
        look = {key: value for key, value in style.items() if key != "mark"}
        axis.ecdf(values, label=name, lw=1.6, **look)
    axis.set_xlabel("accuracy on the client's own test records")
    axis.set_ylabel("share of clients that reach at most this")
    axis.grid(alpha=0.3)
    if groups:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    with writing(path):
        figure.savefig(path, dpi=120)
    pyplot().close(figure)


def _styles() -> Any:
    """Line styles without end: colours repeat with other dashes."""
    for number in itertools.count():
        dash = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
        yield {"color": COLOURS[number % len(COLOURS)], "linestyle": dash, "mark": MARKS[number % len(MARKS)]}


def _figure(panels: int, title: str) -> tuple[Any, Any]:
    figure, axes = pyplot().subplots(1, panels, figsize=(14, 4.6), sharey=True, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    return figure, axes


def _draw(axis: Any, x: list[float], values: np.ndarray, name: str, style: dict[str, Any]) -> End:
    """Draw a line and its band; return the end of the line and its colour."""
    look = {key: value for key, value in style.items() if key != "mark"}
    if len(x) == 1:
        look["marker"] = style["mark"]
    mean = values.mean(axis=0)
    axis.plot(x, mean, label=name, lw=1.6, markersize=5, **look)
    axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.13, lw=0)
    return float(x[-1]), float(mean[-1]), style["color"]


def _finish(axes: Any, below: str, ends: list[list[End]]) -> None:
    """Add titles and the values at the ends of lines; all panels must be drawn by then, because they share their
    heights."""
    low, high = axes[0].get_ylim()
    for axis, panel, mine in zip(axes, PANELS.values(), ends, strict=True):
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel(below)
        axis.grid(alpha=0.3)
        axis.margins(x=0.09)
        if not mine:
            axis.text(0.5, 0.5, "no such model", transform=axis.transAxes, ha="center", color="#777777")
        for (x, y, colour), place in zip(mine, spread_labels([y for _, y, _ in mine], GAP * (high - low)), strict=True):
            axis.annotate(
                f"{100 * y:.1f}",
                (x, place),
                xytext=(6, 0),
                textcoords="offset points",
                color=colour,
                fontsize=8,
                va="center",
                annotation_clip=False,
            )


def spread_labels(values: Sequence[float], gap: float) -> list[float]:
    """Positions for labels at `values`, moved up where two would be nearer to each other than `gap`."""
    places = list(values)
    below = -np.inf
    for number in sorted(range(len(values)), key=lambda number: values[number]):
        places[number] = below = max(values[number], below + gap)
    return places


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib.ticker import PercentFormatter

    axes[0].set_ylabel("accuracy on clients' own test records")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    handles, names = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False, fontsize=9)
    with writing(path):
        figure.savefig(path, dpi=120)
    pyplot().close(figure)


def check_picture(path: Path) -> bool:
    """Check, before a long run, that its picture can be written to `path`; False where matplotlib is not installed."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        return False
    with writing(path):
        if path.is_dir():
            raise ValueError("it is a folder")
        kinds = FigureCanvasBase.get_supported_filetypes()
        if path.suffix.removeprefix(".").lower() not in {"", *kinds}:
            raise ValueError(f"{path.suffix!r} is no kind of picture; .png, .pdf and .svg are")
    return True
