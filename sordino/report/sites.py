"""What a site's owner sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sordino.deploy.rules import RULES_CHANGED
from sordino.report.tables import epsilon_text
from sordino.report.wording import compared_words, percent

PINNED = "May be in a cohort with it (compare with what their owners told you, not with what the server says):"
NOBODY = "No roster is pinned in site.toml: the server could invent sites, so that nobody else's noise is counted on."
MISFITS = (
    "This site looks at no experiment any more: it has told servers too often that theirs did not fit its data "
    "(site.log says why). Raise max_misfits in site.toml if they may be told more."
)


def times(count: int) -> str:
    """Words for a number of times."""
    return "once" if count == 1 else f"{count} times"


DOUBTFUL = (
    "Its owner has accepted this ledger without a witness: its budget counts as used up until the other sites of the "
    "roster confirm the ledger, which they are asked for at the next question."
)


def site_report(status: Mapping[str, Any]) -> RenderableType:
    """A site's spending, runs and models."""
    head = Text(f"{status['name']}  {status['fingerprint']}", style="bold")
    spent = Table("observer", "epsilon spent", box=None, padding=(0, 2, 0, 0))
    spent.columns[1].justify = "right"
    for view, epsilon in status["spent"].items():
        spent.add_row(view, epsilon_text(epsilon))
    limit = epsilon_text(status["max_epsilon"])
    bound = (
        f"at most {limit} for the {status['promised']} over all runs, at delta = {status['max_delta']:.3g}; "
        f"protects one {status['unit']}"
    )
    parts: list[RenderableType] = [head, "", spent, Text(bound)]
    parts += [Text(sentence) for sentence in compared_words(status)]
    parts += ["", Text(NOBODY if status["roster"] is None else PINNED)]
    parts += [Text(f"  {name}  {digits}") for name, digits in (status["roster"] or {}).items()]
    if status["spoiled"]:
        parts.append(Text(f"This site takes part no more: {status['spoiled']}", style="red"))
    if status["rules_changed"]:
        parts.append(Text(RULES_CHANGED, style="red"))
    elif status["rules_changes"]:
        parts.append(
            Text(f"Its rules have changed {times(status['rules_changes'])} since it was made.", style="yellow")
        )
    if status["doubtful"]:
        parts.append(Text(DOUBTFUL, style="red"))
    if status["misfits"] >= status["max_misfits"]:
        parts.append(Text(MISFITS, style="red"))
    parts += ["", _runs(status["runs"]) if status["runs"] else Text("It has not taken part in a run yet.")]
    parts += [Text(f"Model: {run['model']}", style="dim") for run in status["runs"] if run["model"] is not None]
    ledger = status["ledger"]
    parts.append(Text(f"Ledger: {ledger['rows']} rows, head {ledger['head'][:16]}", style="dim"))
    parts.append(Text(f"Code: {status['package']}", style="dim"))
    parts.append(Text("Accuracies are those of this site's own test records; they stay here.", style="dim"))
    return Group(*parts)


def _runs(runs: list[Mapping[str, Any]]) -> Table:
    table = Table("run", "state", "rounds", "personal", "start", "global")
    table.columns[0].no_wrap = True
    for run in runs:
        figures = [percent(run[name]) for name in ("personal", "start", "global")]
        table.add_row(run["name"], run["state"], str(run["rounds"]), *figures)
    return table
