"""Results as tables and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sordino.privacy.unit import Unit
from sordino.report.terminal import shown
from sordino.report.terminal.columns import Column, Fitting
from sordino.report.terminal.metrics import metrics_table
from sordino.report.wording import (
    UNPROTECTED,
    against_words,
    attack_words,
    compared_words,
    ended,
    epsilon_words,
    method_name,
    percent,
    replaced_words,
    unprotected,
)
from sordino.util.formatting import delta_text

OBSERVERS = {
    "outsider": "sees sums and published models",
    "peer": "another client: also knows its own noise",
    "server": "sees every message",
}

BLENDED = {
    "blend": "the blend (personal models)",
    "local": "local models alone",
    "own": "the method's personal models",
    "global": "the global model",
}


def epsilon_text(value: float | None) -> str:
    """An epsilon for the terminal, rounded up so that it is never understated."""
    return shown(epsilon_words(value))


def views_table(epsilon: Mapping[Any, float | None], accuracy: Mapping[Any, float]) -> Table:
    """Epsilon for each observer, with what the best attack achieves."""
    table = Table("observer", "what it sees", "epsilon", "best attack", box=None, padding=(0, 2, 0, 0))
    table.columns[2].justify = table.columns[3].justify = "right"
    for view, sees in OBSERVERS.items():
        table.add_row(view, sees, epsilon_text(epsilon[view]), attack_words(accuracy[view]))
    return table


SIMULATED = "Accuracies are measured by the simulation on the clients' raw test records: no client would send them."


def run_report(summary: Mapping[str, Any], store: str, measured: str = SIMULATED) -> RenderableType:
    """The result of one run; `measured` says where its accuracies come from."""
    accuracy = summary["accuracy"]
    table = Table("accuracy (mean over clients)", "", box=None, padding=(0, 2, 0, 0))
    table.add_row("personal models, after training", percent(accuracy["personal"]))
    table.add_row("  worst client", percent(accuracy["personal_worst"]))
    table.add_row("models at round start", percent(accuracy["start"]))
    table.add_row("global model", percent(accuracy["global"]))
    beside: list[RenderableType] = []
    if any(metric["clients"] for metric in summary.get("metrics", {}).values()):
        beside += [metrics_table(summary["metrics"], summary["positive"]), ""]
    beside += [*_blended(summary["blend"]), ""] if "blend" in summary else []
    head = (
        f"{summary['run']}: {summary.get('called', summary['method'])} ({_mode(summary)}), {summary['rounds']} rounds, "
        f"{summary['clients']} clients, {summary['parameters']:,} parameters, {summary['seconds']:.1f} s"
    )
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        "",
        table,
        "",
        *beside,
        views_table(summary["epsilon"], summary["attack_accuracy"]),
        *(Text(sentence) for sentence in _meaning(summary)),
    ]
    parts += [Text(f"Not covered: {ended(reason)}", style="red") for reason in summary["not_covered"]]
    parts += [Text(f"Note: {note}", style="yellow") for note in summary["notes"]]
    parts.append(Text(measured, style="dim"))
    parts.append(Text(f"Models: {store}/runs/{summary['run']}/models.safetensors", style="dim"))
    return Group(*parts)


def _mode(summary: Mapping[str, Any]) -> str:
    """Which variant it was, and whether it was private at all."""
    return str(summary["variant"]) if summary["privacy"] == "dp" else f"{summary['variant']}, without privacy"


def _blended(blend: Mapping[str, Any]) -> list[RenderableType]:
    """What clients predict with beside each of its parts alone, and who gains by it."""
    table = Table("predicting with", "accuracy", "worst tenth", box=None, padding=(0, 2, 0, 0))
    for name, words in BLENDED.items():
        table.add_row(words, percent(blend["accuracy"][name]), percent(blend["worst_tenth"][name]))
    counts = blend.get("against_local")  # older runs do not tell
    return [table] if counts is None else [table, Text(f"Against local models alone, {against_words(counts)}.")]


def _meaning(summary: Mapping[str, Any]) -> list[str]:
    """What the epsilons of a run are for."""
    if unprotected(summary["epsilon"]):
        return [UNPROTECTED]
    at = f"at delta = {delta_text(summary['delta'])}"
    if not Unit(summary["unit"]).record_level:
        return [f"{at}; protects one client; planned for: {summary['protect_from']}", *compared_words(summary)]
    sentences = [
        f"{at}; protects one record; each client's noise holds for every observer",
        *compared_words(summary),
    ]
    clients = summary["epsilon_clients"]
    if clients is not None:
        spread = ", ".join(f"{name} {epsilon_text(value)}" for name, value in clients.items())
        figures = (summary["epsilon_replace_one"], summary.get("delta_replace_one"))
        replaced = shown(replaced_words(*figures, summary["delta"]))
        sentences.append(f"over clients: {spread}")
        sentences.append(
            f"for a record whose contents are replaced by others, which is emptying and filling its place: {replaced}"
        )
    return sentences


def comparison_table(rows: list[dict[str, Any]], sweep: Sequence[str] = ()) -> RenderableType:
    """Methods side by side: accuracies in percent, mean ± spread over seeds. Columns go where a terminal is narrow, but
    never the method's."""
    seeds = rows[0]["seeds"]
    spread = f"mean ± spread over {seeds} seeds" if seeds > 1 else "one seed"
    title = f"accuracy in % ({spread}), then epsilon for each observer"
    columns = [
        Column("method", left=True),
        *(Column("budget" if key == "epsilon" else key, left=True) for key in sweep),
        *(Column("personal"), Column("worst", 4), Column("start", 6), Column("global", 3)),
        *(Column("outsider", 1), Column("peer", 5), Column("server", 2)),
    ]
    cells = []
    for row in rows:
        accuracy = row["accuracy"]
        cells.append(
            [
                method_name(row).replace("[", "\n[", 1),  # hyper-parameters have a line of their own
                *(str(row["at"][key]) for key in sweep),
                _plus_minus(accuracy["personal"], row["seeds"]),
                shown("–") if accuracy["personal_worst"] is None else f"{100 * accuracy['personal_worst']['mean']:.0f}",
                _plus_minus(accuracy["start"], row["seeds"]),
                _plus_minus(accuracy["global"], row["seeds"]),
                *(epsilon_text(row["epsilon"][view]) for view in OBSERVERS),
            ]
        )
    return Fitting(columns, cells, shown(title))


def _plus_minus(figure: Mapping[str, float] | None, seeds: int) -> str:
    """Mean and spread over seeds in percent; the mean alone where there is one seed, which has no spread."""
    if figure is None:
        return shown("–")
    spread = f"±{100 * figure['spread']:.1f}" if seeds > 1 else ""
    return shown(f"{100 * figure['mean']:.1f}{spread}")
