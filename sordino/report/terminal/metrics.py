"""Terminal tables of models' metrics (accuracy, recall, AUC, ...), over all clients and for each client."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sordino.report.terminal import terminal_text
from sordino.report.terminal.columns import Column, Fitting
from sordino.store.run_summary import Metric
from sordino.util.formatting import of_part, split_part

if TYPE_CHECKING:  # what sites need may not be installed
    from sordino.deploy.site.judging import SiteJudgement

PERCENTS = {
    "accuracy": "accuracy",
    "majority": "  always the majority class",
    "balanced_accuracy": "balanced accuracy",
    "recall": "recall",
    "auc": "AUC",
}
PLAIN = {"log_loss": "log loss (low is good)", "calibration_error": "calibration error (likewise)"}
OF_OTHERS = {
    "r2": "R² (share of the variance that is explained)",
    "rmse": "root mean squared error",
    "constant_rmse": "  always the own mean",
    "mae": "mean absolute error",
    "coverage": "share of records inside the 90 % interval",
    "interval_width": "width of the 90 % interval",
    "concordance": "concordance (Harrell)",
    "integrated_brier": "integrated Brier score (low is good)",
    "constant_brier": "  always the own Kaplan-Meier curve",
}
"""Metrics of tasks without classes."""
WORDS = {**PERCENTS, **PLAIN, **OF_OTHERS}
OF_CLIENTS = {
    "accuracy": Column("accuracy"),
    "majority": Column("majority", 3),
    "balanced_accuracy": Column("balanced", 2),
    "recall": Column("recall", 1),
    "auc": Column("AUC", 1),
    "log_loss": Column("log loss", 4),
    "calibration_error": Column("calibration", 5),
    "r2": Column("R²"),
    "rmse": Column("RMSE", 1),
    "mae": Column("MAE", 2),
    "coverage": Column("coverage", 3),
    "interval_width": Column("width", 4),
    "constant_rmse": Column("RMSE of mean", 5),
    "concordance": Column("concordance"),
    "integrated_brier": Column("Brier", 1),
    "constant_brier": Column("Brier of curve", 4),
}


WEIGHT_OF_OUTCOME = 10
"""Added weight of the columns of each further outcome: a narrow terminal drops the heaviest first. Columns of the
metric by which clients are compared have none."""


def metric_words(names: Collection[str], words: Mapping[str, str], positive: str | None = None) -> dict[str, str]:
    """Words for those metrics that have some, in the order of the words; then for those of each of several outcomes,
    which are followed by its name. What is about a class that is looked for is left out where there is none.

    Args:
        names: of metrics, as `Task.metrics` has them.
        words: by metric.
        positive: class that is looked for.
    """
    plain = [name for name in words if name in names]
    pairs = [(name, *split_part(name)) for name in (*plain, *(one for one in names if split_part(one)[1]))]
    return {
        name: words[metric].format(positive=part or positive)
        + (f", {part}" if part and "{positive" not in words[metric] else "")
        for name, metric, part in pairs
        if metric in words and not (part is None and positive is None and "{positive" in words[metric])
    }


def metrics_table(metrics: Mapping[str, Metric], positive: str | None) -> Table:
    """Table of metrics over clients: mean, worst tenth and number of clients; then over all records together."""
    heads = ("mean", "worst tenth", "clients", "all records")
    table = Table("each client's own model", *heads, box=None, padding=(0, 2, 0, 0))
    for place in range(1, 5):
        table.columns[place].justify = "right"
    for name, words in metric_words(metrics, WORDS).items():
        figure = metrics[name]
        if not figure.clients:
            continue
        of = f" of {positive!r}" if name == "recall" and positive is not None else ""
        over_clients = [_figure(name, value) for value in (figure.mean, figure.worst_tenth)]
        table.add_row(words + of, *over_clients, str(figure.clients), _figure(name, figure.overall))
    return table


def own_metrics(metrics: Mapping[str, float | None], positive: str | None) -> Table:
    """Table of one client's metrics."""
    table = Table("on this site's own test records", "", box=None, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for name, words in metric_words(metrics, WORDS).items():
        of = f" of {positive!r}" if name == "recall" and positive is not None else ""
        if metrics[name] is not None:
            table.add_row(words + of, _figure(name, metrics[name]))
    return table


JUDGED = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "recall": "recall of {positive!r}",
    "precision": "precision of {positive!r}",
    "specificity": "others than {positive!r} left alone",
    "calibration": "probability of {positive!r} too high by",
    "calibration_error": "calibration error (low is good)",
    "log_loss": "log loss (low is good)",
    "r2": "R² (share of the variance that is explained)",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "bias": "predictions too high by",
    "coverage": "share of records inside the 90 % interval",
    "concordance": "concordance (Harrell)",
    "events": "probability of the event too high by",
}
IN_UNITS = ("rmse", "mae", "bias", "interval_width", "constant_rmse")
"""Figures in the unit of what is predicted."""
IN_PERCENT = ("accuracy", "near", "recall", "precision", "specificity", "calibration", "coverage", "events")


def judged_table(models: Mapping[str, Mapping[str, Any]], over: str = "on this site's own test records") -> Table:
    """Table of judgements, documents of `sordino.tasks.judgement.Judgement`, each under the name of its model: figures
    with 95 % intervals, one column for each model."""
    heads = ("", "95 % interval")
    table = Table(over, *(head or name for name in models for head in heads), box=None, padding=(0, 2, 0, 0))
    for place in range(1, 2 * len(models) + 1):
        table.columns[place].justify = "right"
    first = next(iter(models.values()))
    for name, words in metric_words(first["figures"], JUDGED, first["positive"]).items():
        table.add_row(words, *map(terminal_text, figures_of(name, models)))
    return table


def figures_of(name: str, models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A figure of each model's judgement and its 95 % interval, as they are printed; a dash for a model that has no
    such figure, as the server's has no intervals whose coverage could be judged."""
    found = [one["figures"] for one in models.values()]
    return [cell for one in found for cell in (figure_with_interval(name, one[name]) if name in one else ("–", ""))]


def form_of(name: str) -> str:
    """Format in which a figure is printed."""
    metric, _ = split_part(name)
    return "{:.4g}" if metric in IN_UNITS else "{:.1%}" if metric in IN_PERCENT else "{:.3f}"


def figure_with_interval(name: str, figure: Mapping[str, float] | None) -> tuple[str, str]:
    """A figure of a judgement and its 95 % interval, as they are printed."""
    if figure is None:
        return "too few", ""
    form = form_of(name)
    return form.format(figure["value"]), f"{form.format(figure['low'])} to {form.format(figure['high'])}"


EVALUATED = {
    **{"accuracy": "accuracy", "auc": "AUC", "recall": "recall"},
    **{name: JUDGED[name] for name in ("r2", "rmse", "mae", "bias")},
    "near": "within a tenth of the range",
    "integrated_brier": "integrated Brier score",
    "constant_brier": "that of the Kaplan-Meier curve",
    "calibration": "probability too high by",
}


def evaluation_table(evaluation: Mapping[str, Any], over_records: bool) -> Table:
    """Table of the figures that a share of the budget paid for, each with its interval, and in a simulation with the
    true one."""
    true, over = (
        evaluation.get("true"),
        "all test records" if over_records else "clients, each counting as one",
    )
    heads = ("with noise", "95 % interval", *(("true",) if true else ()))
    table = Table(f"shared model, over {over}", *heads, box=None, padding=(0, 2, 0, 0))
    for place in range(1, len(heads) + 1):
        table.columns[place].justify = "right"
    for name, words in metric_words(evaluation["figures"], EVALUATED).items():
        figure, beside = evaluation["figures"][name], []
        if true:
            known = true.get(name)
            beside = [terminal_text("–") if known is None else form_of(name).format(known)]
        cells = ("drowned", "") if figure is None else figure_with_interval(name, figure)
        table.add_row(words, *cells, *beside)
    return table


def confusion_table(judgement: Mapping[str, Any]) -> Table:
    """Table of how many records of each class are given each class."""
    names = list(judgement["classes"])
    table = Table("what it is, and what is predicted:", *names, box=None, padding=(0, 2, 0, 0))
    for place in range(1, len(names) + 1):
        table.columns[place].justify = "right"
    for name, row in zip(names, judgement["confusion"], strict=True):
        table.add_row(name, *map(str, row))
    return table


def judgement_report(found: SiteJudgement) -> RenderableType:
    """Report on how well a site's models do on its own test records."""
    own = found.own.to_dict()
    models = {"own": own} | ({} if found.shared is None else {"shared": found.shared.to_dict()})
    rare = "" if found.own.positive is None else f", {found.own.classes[found.own.positive]} {found.own.positive!r}"
    head = Text(f"{found.site}, run {found.run}: {found.own.records} test records{rare}", style="bold")
    parts: list[RenderableType] = [head, "", judged_table(models)]
    parts += ["", confusion_table(own)] if own["classes"] else []
    if found.own.threshold is not None:
        parts.append(Text(f"{found.own.positive!r} is predicted from a probability of {found.own.threshold:.3f} on."))
    worst = found.own.worst
    if worst is not None:
        about = [
            ("AUC", worst.auc, "{:.3f}"),
            ("accuracy", worst.accuracy, "{:.1%}"),
            ("recall", worst.recall, "{:.1%}"),
        ]
        told = [
            f"{name} {form.format(one.value)} ({form.format(one.low)} to {form.format(one.high)})"
            for name, one, form in about
            if one is not None
        ]
        parts += ["", Text(f"Worst group: {worst.name}, {worst.records} records: {', '.join(told)}")]
    parts += [Text(note, style="yellow") for note in found.own.notes]
    parts.append(Text("None of this leaves the site.", style="dim"))
    return Group(*parts)


def clients_table(rows: Sequence[Mapping[str, Any]], positive: str | None) -> Fitting:
    """Table of each client's metrics, of several outcomes the means and those of each; a star marks models that predict
    the same class for all records."""
    names = dict.fromkeys(name for row in rows for name in row)
    parts = list(dict.fromkeys(part for _, part in map(split_part, names) if part is not None))
    told: dict[str, Column] = {}
    for metric, column in OF_CLIENTS.items():
        if metric in names and (metric != "recall" or positive is not None):
            told[metric] = column
        for place, part in enumerate(parts):
            weight = column.weight + WEIGHT_OF_OUTCOME * (1 + place) if column.weight else 1
            if of_part(metric, part) in names:
                told[of_part(metric, part)] = Column(f"{column.heading} [{part}]", weight)
    starred = "one_class" in names
    cells = [
        [row["client"] + ("*" if row.get("one_class") else ""), *(_figure(name, row[name]) for name in told)]
        for row in rows
    ]
    title = "each client on its own test records" + ("; * predicts the same class for all" if starred else "")
    several = "; columns that name no outcome are means" if parts else ""
    return Fitting([Column("client", left=True), *told.values()], cells, title + several)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return terminal_text("–")
    metric, _ = split_part(name)
    if metric in IN_UNITS:
        return f"{value:.4g}"
    return f"{value:.1%}" if metric in (*PERCENTS, "coverage") and metric != "auc" else f"{value:.3f}"
