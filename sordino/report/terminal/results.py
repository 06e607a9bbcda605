"""Terminal output of results: the report on one run, and the table of compared methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sordino.privacy.unit import Unit
from sordino.report.terminal import terminal_text
from sordino.report.terminal.columns import Column, Fitting
from sordino.report.terminal.metrics import evaluation_table, metrics_table
from sordino.report.wording import (
    SCORES,
    UNPROTECTED,
    accuracy_source,
    against_words,
    attack_words,
    epsilon_words,
    method_name,
    neighbour_words,
    observer_of_figures,
    percent,
    protects_nothing,
    replacement_words,
    score_of,
    with_full_stop,
)
from sordino.util.formatting import delta_text

if TYPE_CHECKING:  # a list of runs is on the screen before torch would be loaded
    from sordino.privacy.views import View
    from sordino.store.run_summary import MixtureFigures, Summary
    from sordino.study.compare import ComparisonRow, OverSeeds

OBSERVERS: dict[View, str] = {
    "outsider": "sees sums and published models",
    "peer": "another client: also knows its own noise",
    "server": "sees every message",
}
OF_SECURE_SUM = "with all other sites; alone it sees sums"
"""View of the server of a deployment whose messages were added up by a secure sum."""

MIXED = {
    "blend": "the blend (personal models)",
    "recalibrated": "recalibrated models (personal: recalibrate)",
    "local": "local models alone",
    "own": "the method's personal models",
    "global": "the global model",
}


LOCAL_ALONE = (
    "Local models alone are trained at the end of this run, at most 60 passes over a client's records, with this "
    "method's rate and batches or with those of `--method local`, whichever predict the client's held-out records "
    "better; that method itself makes as many passes as rounds x epochs: figures differ."
)
"""Sentence beside the accuracy of local models in a mixture."""


def epsilon_text(value: float | None) -> str:
    """Format an epsilon for the terminal, rounded up so that it is never understated."""
    return terminal_text(epsilon_words(value))


def observers_of(summary: Summary) -> dict[View, str]:
    """Sentence on what each observer of a run sees, by observer."""
    return OBSERVERS | ({"server": OF_SECURE_SUM} if summary.summed_securely else {})


def views_table(
    epsilon: Mapping[Any, float | None],
    accuracy: Mapping[Any, float],
    observers: Mapping[View, str] = OBSERVERS,
) -> Table:
    """Table of epsilon and of the best attack's accuracy for each observer; `observers` says what each of them sees."""
    table = Table("observer", "what it sees", "epsilon", "best attack", box=None, padding=(0, 2, 0, 0))
    table.columns[2].justify = table.columns[3].justify = "right"
    for view, sees in observers.items():
        table.add_row(view, sees, epsilon_text(epsilon[view]), attack_words(accuracy[view]))
    return table


def run_report(summary: Summary, store: str) -> RenderableType:
    """Report on one run."""
    accuracy = summary.accuracy
    table = Table(f"{score_of(summary)} (mean over clients)", "", box=None, padding=(0, 2, 0, 0))
    table.add_row("personal models, after training", percent(accuracy["personal"]))
    table.add_row("  worst client", percent(accuracy["personal_worst"]))
    if accuracy["start"] is not None:
        table.add_row("models with which clients began the last round", percent(accuracy["start"]))
    table.add_row("global model", percent(accuracy["global"]))
    beside: list[RenderableType] = []
    if summary.metrics and any(metric.clients for metric in summary.metrics.values()):
        beside += [metrics_table(summary.metrics, summary.positive), ""]
    if summary.evaluation is not None:
        beside += [evaluation_table(summary.evaluation, summary.unit.record_level), ""]
    if summary.curve is not None:
        told = Table("all training records (Kaplan and Meier, with noise)", "", box=None, padding=(0, 2, 0, 0))
        for name, value in summary.curve.items():
            told.add_row(name, percent(value))
        beside += [told, ""]
    beside += [] if summary.mixture is None else [*_mixture_parts(summary.mixture, score_of(summary)), ""]
    head = (
        f"{summary.run}: {summary.called} ({_mode(summary)}), {summary.rounds} rounds, "
        f"{summary.clients} clients, {summary.parameters:,} parameters, {summary.seconds:.1f} s"
    )
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        "",
        table,
        "",
        *beside,
        *privacy_parts(summary),
    ]
    parts += [Text(f"Note: {note}", style="yellow") for note in summary.notes]
    parts.append(Text(accuracy_source(summary), style="dim"))
    parts.append(Text(f"Models: {store}/runs/{summary.run}/models.safetensors", style="dim"))
    return Group(*parts)


def privacy_parts(summary: Summary) -> list[RenderableType]:
    """Table of a run's epsilon for each observer, and sentences on what it protects and what it does not cover."""
    return [
        views_table(summary.epsilon, summary.attack_accuracy, observers_of(summary)),
        *(Text(sentence) for sentence in _meaning(summary)),
        *(Text(f"Not covered: {with_full_stop(reason)}", style="red") for reason in summary.not_covered),
    ]


def _mode(summary: Summary) -> str:
    """Variant of the run, and whether it had privacy."""
    return summary.variant if summary.privacy == "dp" else f"{summary.variant}, without privacy"


def _mixture_parts(mixture: MixtureFigures, score: str) -> list[RenderableType]:
    """Table of what clients predict with beside each of its members, and who gains by it."""
    table = Table("predicting with", score, "worst tenth", box=None, padding=(0, 2, 0, 0))
    for name in mixture.accuracy:
        table.add_row(MIXED[name], percent(mixture.accuracy[name]), percent(mixture.worst_tenth[name]))
    counts = mixture.against_local
    parts: list[RenderableType] = [table]
    parts += [] if "local" not in mixture.accuracy else [Text(LOCAL_ALONE, style="dim")]
    return parts if counts is None else [*parts, Text(f"Against local models alone, {against_words(counts)}.")]


def _meaning(summary: Summary) -> list[str]:
    """Sentences on what the epsilons of a run protect."""
    if protects_nothing(summary.epsilon):
        return [UNPROTECTED]
    at = f"at delta = {delta_text(summary.delta)}"
    level = summary.record_level
    if level is None:
        return [f"{at}; protects one client; planned for: {summary.protect_from}", *neighbour_words(Unit.CLIENT)]
    observer = observer_of_figures(summary.epsilon, summary.protect_from)
    noise, whose = "each client's noise holds for every observer", ""
    if observer is not None:
        noise, whose = f"clients share the noise, which was planned for: {observer}", f" (for the {observer})"
    sentences = [
        f"{at}; protects one {summary.unit}; {noise}",
        *neighbour_words(summary.unit, summary.epsilon_rows, observer),
    ]
    if level.epsilon_clients is not None:
        spread = ", ".join(f"{name} {epsilon_text(value)}" for name, value in level.epsilon_clients.items())
        replaced = terminal_text(replacement_words(level.epsilon_replace_one, level.delta_replace_one, summary.delta))
        sentences.append(f"over clients{whose}: {spread}")
        sentences.append(f"if one {summary.unit} is replaced by another{whose}: {replaced}")
    return sentences


def comparison_table(rows: Sequence[ComparisonRow], sweep: Sequence[str] = ()) -> RenderableType:
    """Table of methods side by side: accuracies in percent, mean ± spread over seeds. Columns are dropped where a
    terminal is narrow, but never the method's."""
    seeds = rows[0].seeds
    spread = f"mean ± spread over {seeds} seeds" if seeds > 1 else "one seed"
    binary, begun = (any(found) for found in ([row.auc for row in rows], [row.accuracy["start"] for row in rows]))
    auc = " and area under the curve (AUC)" if binary else ""
    title = f"{SCORES[rows[0].score]} in %{auc} ({spread}), then epsilon for each observer"
    columns = [
        Column("method", left=True),
        *(Column("budget" if key == "epsilon" else key, left=True) for key in sweep),
        Column("personal"),
        *([Column("AUC", 0)] if binary else []),
        *(Column("worst", 4), *([Column("start", 6)] if begun else []), Column("global", 3)),
        *(Column("outsider", 1), Column("peer", 5), Column("server", 2)),
        *(Column("worst tenth", 7), Column("Gini", 9), Column("variance", 12)),
        *(Column("MB up", 8), Column("MB down", 10), Column("seconds", 11)),
    ]
    cells = []
    for row in rows:
        accuracy = row.accuracy
        cells.append(
            [
                method_name(row).replace("[", "\n[", 1),  # hyper-parameters have a line of their own
                *(str(row.at[key]) for key in sweep),
                _plus_minus(accuracy["personal"], row.seeds),
                *([_auc_text(row)] if binary else []),
                terminal_text("–") if (worst := accuracy["personal_worst"]) is None else f"{100 * worst.mean:.0f}",
                *([_plus_minus(accuracy["start"], row.seeds)] if begun else []),
                _plus_minus(accuracy["global"], row.seeds),
                *(epsilon_text(row.epsilon[view]) for view in OBSERVERS),
                _plus_minus(row.fairness.get("worst_tenth"), row.seeds),
                *(_small(row.fairness.get(name)) for name in ("gini", "variance")),
                *(_megabytes(one) for one in (row.upload_bytes, row.download_bytes)),
                f"{row.seconds:.1f}",
            ]
        )
    return Fitting(columns, cells, terminal_text(title))


def _small(figure: OverSeeds | None) -> str:
    """Mean over seeds of a figure far below one."""
    return terminal_text("–") if figure is None else f"{figure.mean:.3f}"


def _megabytes(count: float | None) -> str:
    """Bytes of a run, in millions."""
    return terminal_text("–") if count is None else f"{count / 1e6:,.1f}"


def _auc_text(row: ComparisonRow) -> str:
    """Area under the curve, with its spread over seeds."""
    if row.auc is None:
        return terminal_text("–")
    return terminal_text(f"{row.auc.mean:.3f}" + (f"±{row.auc.spread:.3f}" if row.seeds > 1 else ""))


def _plus_minus(figure: OverSeeds | None, seeds: int) -> str:
    """Mean and spread over seeds in percent; the mean alone where there is one seed, which has no spread."""
    if figure is None:
        return terminal_text("–")
    spread = f"±{100 * figure.spread:.1f}" if seeds > 1 else ""
    return terminal_text(f"{100 * figure.mean:.1f}{spread}")
