"""What an audit found, for the terminal."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from sordino.privacy.audit.findings import Report, ViewReport
from sordino.report.tables import epsilon_text
from sordino.report.wording import bound_words
from sordino.rounding import delta_text


def audit_report(report: Report) -> RenderableType:
    """The verdict for each observer, and why."""
    head = f"{report.method} ({report.variant}), protecting one {report.unit}, delta = {delta_text(report.delta)}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    for name, view in report.views.items():
        refuted = report.refutes(name)
        parts.append(Text(_sentence(name, view, refuted), style="bold red" if refuted else ""))
    for finding in report.findings:
        parts.append(
            Text(f"Tier {finding.tier}, {finding.name}: {finding.sentence}", style="red" if finding.refuted else "")
        )
    parts.append(Text(f"{report.trials:,} trials, {report.seconds:.1f} s", style="dim"))
    return Group(*parts)


def _sentence(name: str, view: ViewReport, refuted: bool) -> str:
    """What the audit says of one observer, and by which attack."""
    if math.isinf(view.claimed):
        return f"{name}: nothing is claimed: epsilon is infinite."
    said = f"{name}: audit at 95 %: epsilon >= {bound_words(view.bound)}; claimed <= {epsilon_text(view.claimed)}"
    by = "" if view.best is None else f" ({view.best.name})"
    if view.true is not None:
        said += f" as published, <= {epsilon_text(view.true)} by the ledger"
    return f"{said}; {'REFUTED at 99.9 %' if refuted else 'consistent'}{by}."
