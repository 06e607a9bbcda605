"""Charts of the HTML page on runs: accuracy over rounds, over epsilon and by client, spent epsilon, bounds and noise,
labels, clusters, and the curve from budgets to thresholds. `charts` draws them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from sordino.parts.curves import Curve
from sordino.privacy.ledger import Row
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.figures import PANELS
from sordino.report.html import charts
from sordino.report.html.charts import Line
from sordino.report.html.gather import ALONE, Group, RunContent
from sordino.report.html.sentences import differences
from sordino.report.wording import epsilon_words
from sordino.store.ledger_rows import is_paid_elsewhere

MOST_COLUMNS = 120
"""Most clients in a picture of labels; of more, so many are shown, evenly spaced."""


def accuracies(groups: Sequence[Group]) -> list[Markup]:
    """Accuracy over the rounds: personal models, models at round start and global model; mean over seeds, and the range
    as a band."""
    found = []
    for key, title in PANELS.items():
        drawn = []
        for place, group in enumerate(groups):
            seeds = [[(one["round"] + 1, one[key]) for one in run.rounds if one[key] is not None] for run in group.runs]
            common = sorted(set.intersection(*({number for number, _ in one} for one in seeds)))
            if common:
                values = np.array([[dict(one)[number] for number in common] for one in seeds])
                name = group.name if len(groups) > 1 else ""
                low, high = values.min(axis=0).tolist(), values.max(axis=0).tolist()
                drawn.append(Line(name, common, values.mean(axis=0).tolist(), low, high, colour=place))
        found.append(charts.lines(drawn, f"Accuracy: {title}", "round", charts.percent, lambda v: f"{100 * v:.1f}"))
    return [picture for picture in found if picture]


def sweep(groups: Sequence[Group]) -> Markup:
    """Accuracy against epsilon, for methods that were run at several epsilons: mean over seeds, and the range as a
    band."""
    by_method: dict[str, list[Group]] = {}
    for group in groups:
        if group.first.row.configuration["epsilon"] is not None:
            by_method.setdefault(group.without("epsilon"), []).append(group)
    drawn: list[Line] = []
    for found in by_method.values():
        points = sorted((group.first.row.configuration["epsilon"], _personal(group)) for group in found)
        if len(points) > 1 and all(values for _, values in points):
            across = [epsilon for epsilon, _ in points]
            low, high = [min(values) for _, values in points], [max(values) for _, values in points]
            middle = [float(np.mean(values)) for _, values in points]
            drawn.append(Line(found[0].plain_name("epsilon"), across, middle, low, high, colour=len(drawn)))
    free = [group for group in groups if group.first.row.method == ALONE and _personal(group)]
    marks = [(float(np.mean(_personal(group))), "training alone") for group in free[:1]]
    words = charts.percent, lambda value: f"{100 * value:.1f}"
    return charts.lines(drawn, "Personal accuracy against epsilon", "epsilon", *words, False, True, marks)


def clients(groups: Sequence[Group]) -> list[Markup]:
    """Every client's accuracy as a strip, and who gains and loses against training alone."""
    strips = {}
    for group in groups:
        names = group.first.names()
        strips[group.name] = [(names[client], value) for client, value in sorted(group.first.clients.items())]
    title = "Accuracy of every client, and their mean (triangle)"
    found = [charts.strip(strips, title, "accuracy on own test records")] if any(strips.values()) else []
    for group in groups:
        title = "Gain over training alone" + (f": {group.name}" if len(groups) > 1 else "")
        title += ", mean over seeds" if len(group.runs) > 1 else ""
        by_name: dict[str, list[float]] = {}
        for name, value in differences(group):
            by_name.setdefault(name, []).append(value)
        mean = [(name, float(np.mean(values))) for name, values in by_name.items()]
        found.append(charts.gains(mean, title, "clients in order; points of accuracy"))
    return [picture for picture in found if picture]


def epsilons(run: RunContent) -> Markup:
    """Epsilon over the rounds for each observer; one that is infinite has no line."""
    drawn = []
    for place, view in enumerate(VIEWS):
        known = [(one["round"] + 1, one[f"epsilon_{view}"]) for one in run.rounds if one[f"epsilon_{view}"] is not None]
        if known and any(value > 0 for _, value in known):
            drawn.append(Line.through(known, view, place))
    return charts.lines(
        drawn, "Epsilon over the rounds", "round", end_words=epsilon_words, logarithmic=_far_apart(drawn)
    )


def bounds(run: RunContent) -> list[Markup]:
    """Bound of a client's release and noise on it, over the rounds: median over clients, and their range."""
    found = []
    thresholds = [(one["round"] + 1, one["clip"]) for one in run.rounds if one["clip"] is not None]
    if thresholds:
        found.append(charts.lines([Line.through(thresholds)], "Clipping threshold", "round"))
    for release in dict.fromkeys(row.release for row in run.ledger):
        rows = [row for row in run.ledger if row.release == release and not row.exposed and not row.reason]
        found += [picture for picture in (_bound(release, rows), _noise(release, rows, run.summary.unit)) if picture]
    return found


def labels(run: RunContent) -> Markup:
    """Grid of the training records of each class that each client holds."""
    counts = run.labels()
    if counts is None or run.data is None:
        return Markup("")
    chosen = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MOST_COLUMNS)).astype(int))
    names = [run.data.clients[client].name for client in chosen]
    whole = "every client" if len(chosen) == len(counts) else f"{len(chosen)} of {len(counts):,} clients"
    known = [str(number) for number in range(counts.shape[1])] if run.about is None else run.about.meaning.task.groups
    classes = [f"class {name}" if name.isdigit() else name for name in known]
    return charts.cells(counts[chosen], classes, names, f"Training records of {whole} in each class", "clients")


def clusters(run: RunContent) -> list[Markup]:
    """Accuracies of the clients of each cluster, and pictures that the method drew."""
    found = []
    if run.clusters is not None:
        names, strips = run.names(), {}
        for number in np.unique(run.clusters).tolist():
            members = np.flatnonzero(run.clusters == number).tolist()
            known = [(names[client], run.clients[client]) for client in members if client in run.clients]
            strips[f"cluster {number}: {len(members)} clients"] = known
        found.append(charts.strip(strips, "Accuracy of every client by cluster", "accuracy on own test records"))
    for picture in run.pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        image = Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.stem, data)
        figure = Markup('<figure class="chart whole"><figcaption>{}</figcaption>{}</figure>')
        found.append(figure.format(picture.stem.capitalize(), image))
    return found


def curve(found: Curve | None) -> Markup:
    """Curve from a client's budget to its threshold."""
    if found is None:
        return Markup("")
    across = np.geomspace(found.low, found.high, 60)
    line = Line("", across.tolist(), [found(float(epsilon)) for epsilon in across])
    return charts.lines([line], "Threshold for a client's budget", "epsilon of the client")


def _personal(group: Group) -> list[float]:
    """Mean accuracy of personal models with each seed, where it is known."""
    found = [run.summary.accuracy["personal"] for run in group.runs]
    return [value for value in found if value is not None]


def _bound(release: str, rows: Sequence[Row]) -> Markup:
    """Bound on what one client can change, over the rounds; nothing where it is the same in all rounds."""
    drawn = _over_rounds("", rows, lambda row: np.frombuffer(row.sensitivity, dtype="<f8"), 2)
    level = drawn is None or len({*drawn.y, *(drawn.low or ()), *(drawn.high or ())}) == 1
    return Markup("") if level or drawn is None else charts.lines([drawn], f"Bound of one client's {release}", "round")


def _noise(release: str, rows: Sequence[Row], unit: Unit) -> Markup:
    """Noise on a release: for each observer, or, on records' gradients, relative to what one record can change."""
    if any(row.pool == PROMISED for row in rows) or all(is_paid_elsewhere(row) for row in rows):
        return Markup("")
    if any(row.pool for row in rows):
        line = _over_rounds("", [row for row in rows if row.pool], lambda row: row.histories()[:, 1], 0)
        return (
            charts.lines([line], f"Each client's noise on {release}, over what one {unit} can do", "round")
            if line
            else Markup("")
        )
    drawn = []
    for place, view in enumerate(VIEWS):
        line = _over_rounds(view, rows, lambda row, at=place: _met(row)[:, at], place)
        if line is not None:
            drawn.append(line)
    title = f"Noise that each observer meets on {release} (deviation)"
    return charts.lines(drawn, title, "round", end_words=lambda v: f"{v:.3g}", logarithmic=_far_apart(drawn))


def _met(row: Row) -> np.ndarray:
    """Standard deviation of the noise for each owner, or for all, and each view."""
    return np.frombuffer(row.noise, dtype="<f8").reshape(-1, len(VIEWS))


def _over_rounds(name: str, rows: Sequence[Row], of: Any, colour: int) -> Line | None:
    """Figure of ledger rows over the rounds: median over clients, and their range where they differ."""
    by_round: dict[int, list[float]] = {}
    for row in rows:
        by_round.setdefault(row.round + 1, []).extend(value for value in of(row).tolist() if np.isfinite(value))
    known = {number: values for number, values in sorted(by_round.items()) if values}
    if not known or not any(value > 0 for values in known.values() for value in values):
        return None
    middle = [float(np.median(values)) for values in known.values()]
    low, high = [min(values) for values in known.values()], [max(values) for values in known.values()]
    return Line(name, list(known), middle, low, high, colour=colour)


def _far_apart(drawn: Sequence[Line]) -> bool:
    """Whether lines can be told apart on a logarithmic axis only."""
    ends = [line.y[-1] for line in drawn if line.y[-1] > 0]
    return bool(ends) and max(ends) > 8 * min(ends)
