"""Page of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sordino.privacy.ledger import Row, head_of
from sordino.privacy.release import PROMISED
from sordino.privacy.views import VIEWS, View
from sordino.report.html import answers, pictures, render, sentences
from sordino.report.html.gather import ALONE, Group, PageContent, RunContent, gather
from sordino.report.terminal.metrics import metric_words
from sordino.report.wording import (
    accuracy_source,
    epsilon_words,
    method_name,
    percent,
    protects_nothing,
    score_of,
    sentences_of,
    with_full_stop,
)
from sordino.store.ledger_rows import is_paid_elsewhere
from sordino.store.store import Store
from sordino.study.compare import ComparisonRow
from sordino.study.verdict import PERSONAL, judge_of
from sordino.tasks import Classification, Regression, Survival
from sordino.util.formatting import delta_text, finite_or_none, split_part

NAMES = [
    *Classification.metrics,
    *Regression.metrics,
    *(name for name in Survival.metrics if name != "calibration_error"),
]
TOLD = {name: name.replace("_", " ") for name in NAMES if name != "one_class"} | {
    "auc": "AUC",
    "majority": "accuracy of always predicting the majority class",
    "r2": "R²",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "coverage": "coverage of 90 % intervals",
    "interval_width": "width of 90 % intervals",
    "constant_rmse": "root mean squared error of always predicting the own mean",
    "constant_brier": "integrated Brier score of the own Kaplan-Meier curve",
}
"""Metrics on a page, with their names there."""
SHORT = {
    "majority": "majority class",
    "rmse": "RMSE",
    "mae": "MAE",
    "coverage": "coverage",
    "interval_width": "width",
    "constant_rmse": "RMSE of the mean",
    "constant_brier": "Brier of the curve",
}
"""Shorter names for columns of narrow tables."""
MIXED = {"blend": "blending", "recalibrate": "recalibrating"}
"""Work after the last round on clients' models, by what clients predict with."""
MAX_CLIENTS_COMPARED = 40
"""Most clients that are listed one by one."""
MAX_ROWS_SHOWN = 200
"""Most ledger rows shown from the beginning, and as many from the end."""


def runs_page(names: list[str], store: Path, judge: str = PERSONAL.name) -> str:
    """Write one HTML page about finished runs of a store; `judge` names the figure that their verdict is about."""
    opened = Store(store, must_exist=True)
    try:
        told = gather(names, opened, judge_of(judge))
    finally:
        opened.close()
    return render("runs.html", **_context(told))


def _predicts_with(group: Group, personal: str) -> bool:
    """Whether clients of a group predict with models of the kind `personal`."""
    return group.first.row.configuration["personal"] == personal


def _context(told: PageContent) -> dict[str, Any]:
    first, clients = told.groups[0].first, pictures.clients(told.groups)
    return {
        "title": sentences.title(told),
        "answer": answers.answer(told),
        "lead": answers.forest(told) if len(told.groups) > 1 else clients[-1:],
        "summary": sentences.summary(told),
        "tiles": _tiles(told) if len(told.groups) == 1 else [],
        "rows": [_figures(row, group) for row, group in zip(told.comparison.rows, told.groups, strict=True)],
        "positive": _positive(told),
        "view": "server" if first.summary.protect_from == "server" else "outsider",
        "alone_command": None
        if _are_deployed(told) or all(group.alone or group.first.row.method == ALONE for group in told.groups)
        else first,
        "accuracies": [*filter(None, [pictures.sweep(told.groups)]), *pictures.accuracies(told.groups)],
        "clients": clients if len(told.groups) > 1 else clients[:-1],
        "metrics": _metrics(told),
        "each": _each(told),
        "labels": pictures.labels(first),
        "groups": [_group(group) for group in told.groups],
        "audits": told.audits,
        "not_covered": [with_full_stop(one) for one in sentences_of(told.comparison.rows, "not_covered")],
        "notes": sentences_of(told.comparison.rows, "notes"),
        "together": told.comparison.together("outsider") if len(told.groups) == 1 else [],
        "store": str(told.store),
        "deployed": _are_deployed(told),
        "source": accuracy_source(first.summary),
        "mixed": " or ".join(
            word for key, word in MIXED.items() if any(_predicts_with(group, key) for group in told.groups)
        ),
    }


def _are_deployed(told: PageContent) -> bool:
    """Whether a run of the page was on clients' own machines."""
    return any(run.summary.deployed for group in told.groups for run in group.runs)


def _tiles(told: PageContent) -> list[tuple[str, str]]:
    """Figures that matter most: (name, figure)."""
    group = told.groups[0]
    row, summary = told.comparison.rows[0], group.first.summary
    accuracy = row.accuracy
    view: View = "server" if summary.protect_from == "server" else "outsider"
    sent = summary.upload_bytes / max(1, summary.clients)
    tiles = [(f"epsilon for the {view}", epsilon_words(row.epsilon[view]))]
    if view != "server":
        tiles.append(("epsilon for the server", epsilon_words(row.epsilon["server"])))
    score = score_of(summary)
    tested = {"personal": f"mean {score} of personal models", "personal_worst": f"{score} of the worst client"}
    reached = [(what, percent(found.mean)) for name, what in tested.items() if (found := accuracy[name]) is not None]
    return [
        *reached,
        *tiles,
        ("sent by a client in all", f"{sent / 1e6:,.1f} MB" if sent > 1e6 else f"{sent / 1e3:,.1f} kB"),
    ]


def _metrics(told: PageContent) -> dict[str, list[dict[str, str]]]:
    """Figures of each method for each known metric: mean over clients, worst tenth, all records."""
    found: dict[str, list[dict[str, str]]] = {}
    named = dict.fromkeys(name for group in told.groups for name in group.first.summary.metrics or ())
    for name, called in metric_words(named, TOLD).items():
        figures = [(group.first.summary.metrics or {}).get(name) for group in told.groups]
        if any(figure and figure.mean is not None for figure in figures):
            found[called] = [
                {} if not figure else {key: _three(getattr(figure, key)) for key in ("mean", "worst_tenth", "overall")}
                for figure in figures
            ]
    return found


def _each(told: PageContent) -> dict[str, Any] | None:
    """Metrics of each client and its gain over training alone, on a page of one method with few clients."""
    group = told.groups[0]
    run = group.first
    if (
        len(told.groups) > 1
        or len(group.runs) > 1
        or run.metrics is None
        or not 1 < len(run.metrics) <= MAX_CLIENTS_COMPARED
    ):
        return None
    metrics = tuple(run.summary.metrics or ())
    names, known = run.names(), [place for place, name in enumerate(metrics) if split_part(name)[0] in TOLD]
    known = [place for place in known if not np.isnan(run.metrics[:, place]).all()]
    if not known:
        return None
    gains = dict(sentences.differences(group))
    rows = []
    for client, figures in enumerate(run.metrics):
        gain = gains.get(names[client])
        points = [] if not gains else ["–" if gain is None else f"{100 * gain:+.1f}"]
        rows.append((names[client], [*(_three(finite_or_none(figures[place])) for place in known), *points]))
    short = metric_words(metrics, TOLD | SHORT)
    heads = [short[metrics[place]] for place in known]
    return {"heads": [*heads, *(["gain over training alone, points"] if gains else [])], "rows": rows}


def _three(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}"


def _positive(told: PageContent) -> str | None:
    """Class that is looked for; None where none was declared."""
    found = [answers.found_of_class(group) for group in told.groups]
    return next((one[0] for one in found if one is not None), None)


def _figures(row: ComparisonRow, group: Group) -> dict[str, Any]:
    """Template values of a row in the table of methods."""

    def figure(name: str) -> str:
        value = row.accuracy[name]
        if value is None:
            return "–"
        return f"{100 * value.mean:.1f}" + (f" ± {100 * value.spread:.1f}" if row.seeds > 1 else "")

    recall = answers.found_of_class(group)
    return {
        "name": method_name(row),
        "recall": "–" if recall is None else f"{100 * recall[1]:.1f}",
        "auc": "–" if row.auc is None else f"{row.auc.mean:.3f}",
        "accuracy": {name: figure(name) for name in row.accuracy},
        "epsilon": {view: epsilon_words(row.epsilon[view]) for view in VIEWS},
        "protects": "nothing" if protects_nothing(row.epsilon) else f"one {row.unit}",
        "delta": delta_text(row.delta),
        "seeds": row.seeds,
    }


def _group(group: Group) -> dict[str, Any]:
    """Template values of one method, from its first seed."""
    run = group.first
    return {
        "name": group.name,
        "what": sentences.method_title(run.row.method),
        "run": run.row.run,
        "others": [other.row.run for other in group.runs[1:]],
        "observers": sentences.observers(run),
        "protected": sentences.protection(run),
        "epsilons": pictures.epsilons(run),
        "bounds": pictures.bounds(run),
        "shapes": [*pictures.clusters(run), *filter(None, [pictures.curve(run.curve())])],
        "against": sentences.against_alone(group),
        "ledger": _ledger(run),
        "configuration": sentences.experiment_file(run),
        "identity": run.row.identity,
        "people": run.row.people.partition(" ")[0],
    }


def _ledger(run: RunContent) -> dict[str, Any]:
    """Ledger rows, those of both ends of a long ledger, and the link that stands for all of them."""
    shown = run.ledger
    if len(shown) > 2 * MAX_ROWS_SHOWN:
        shown = [*shown[:MAX_ROWS_SHOWN], *shown[-MAX_ROWS_SHOWN:]]
    return {
        "count": len(run.ledger),
        "left_out": len(run.ledger) - len(shown),
        "head": head_of(run.ledger).hex() if run.ledger else "",
        "bounded": any(not row.pool and not is_paid_elsewhere(row) for row in shown),
        "rows": [_entry(row) for row in shown],
    }


def _entry(row: Row) -> dict[str, str | int]:
    """Template values of one ledger row."""
    noise = np.frombuffer(row.noise, dtype="<f8").reshape(-1, len(VIEWS)).T
    bounded = not row.pool and not is_paid_elsewhere(row)
    return {
        "round": row.round + 1,
        "step": row.step,
        "release": row.release,
        "clients": len(row.clients()),
        "bound": _range(np.frombuffer(row.sensitivity, dtype="<f8")) if bounded else "",
        **{view: _range(met) if bounded and not row.reason else "" for view, met in zip(VIEWS, noise, strict=True)},
        "how": _how(row),
    }


def _how(row: Row) -> str:
    if row.reason:
        return f"not covered: {row.reason}"
    if row.exposed:
        return "single messages were revealed: every observer is charged what the server is"
    if row.pool == PROMISED:
        epsilon, delta, _ = row.histories().T
        return f"all that leaves in the run: epsilon {_range(epsilon)} at delta {_range(delta)}"
    if row.pool:
        rate, multiplier, times = row.histories().T
        met = np.array([kind[1] for kind, _ in row.sums()]).T
        each = ", ".join(f"{_range(one)} for the {view}" for view, one in zip(VIEWS, met, strict=True))
        noise = _range(multiplier) if row.equal_for_all else each
        return f"{row.pool} records, sampling rate {_range(rate)}, noise multiplier {noise}, {_range(times)} times"
    return "paid for by another row" if is_paid_elsewhere(row) else ""


def _range(values: np.ndarray) -> str:
    """Range of numbers over clients: one, or from the smallest to the largest."""
    if not len(values):
        return ""
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
