"""Terminal tables of models' metrics (accuracy, recall, AUC, ...), over all clients and for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from sordino.report.terminal import terminal_text
from sordino.report.terminal.columns import Column, Fitting
from sordino.store.run_summary import Metric

PERCENTS = {
    "accuracy": "accuracy",
    "majority": "  always the majority class",
    "balanced_accuracy": "balanced accuracy",
    "recall": "recall",
    "auc": "AUC",
}
PLAIN = {"log_loss": "log loss (low is good)", "calibration_error": "calibration error (likewise)"}
OF_CLIENTS = {
    "accuracy": Column("accuracy"),
    "majority": Column("majority", 3),
    "balanced_accuracy": Column("balanced", 2),
    "recall": Column("recall", 1),
    "auc": Column("AUC", 1),
    "log_loss": Column("log loss", 4),
    "calibration_error": Column("calibration", 5),
}


def metrics_table(metrics: Mapping[str, Metric], positive: str | None) -> Table:
    """Table of metrics over clients: mean, worst tenth and number of clients; then over all records together."""
    heads = ("mean", "worst tenth", "clients", "all records")
    table = Table("each client's own model", *heads, box=None, padding=(0, 2, 0, 0))
    for place in range(1, 5):
        table.columns[place].justify = "right"
    for name, words in {**PERCENTS, **PLAIN}.items():
        figure = metrics[name]
        if not figure.clients:
            continue
        of = f" of {positive!r}" if name == "recall" else ""
        over_clients = [_figure(name, value) for value in (figure.mean, figure.worst_tenth)]
        table.add_row(words + of, *over_clients, str(figure.clients), _figure(name, figure.overall))
    return table


def own_metrics(metrics: Mapping[str, float | None], positive: str | None) -> Table:
    """Table of one client's metrics."""
    table = Table("on this site's own test records", "", box=None, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for name, words in {**PERCENTS, **PLAIN}.items():
        if metrics[name] is not None:
            table.add_row(words + (f" of {positive!r}" if name == "recall" else ""), _figure(name, metrics[name]))
    return table


def clients_table(rows: Sequence[Mapping[str, Any]], positive: str | None) -> Fitting:
    """Table of each client's metrics; a star marks models that predict the same class for all records."""
    told = {name: column for name, column in OF_CLIENTS.items() if name != "recall" or positive is not None}
    cells = [
        [row["client"] + ("*" if row["one_class"] else ""), *(_figure(name, row[name]) for name in told)]
        for row in rows
    ]
    title = "each client on its own test records; * predicts the same class for all"
    return Fitting([Column("client", left=True), *told.values()], cells, title)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return terminal_text("–")
    return f"{value:.1%}" if name in PERCENTS and name != "auc" else f"{value:.3f}"
