"""What an audit found, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sordino.privacy.audit.findings import SAID, SURE, Finding, Report, ViewReport
from sordino.report.tables import epsilon_text
from sordino.report.wording import bound_words, compared_words
from sordino.rounding import delta_text


def audit_report(report: Report) -> RenderableType:
    """The verdict for each observer, and why."""
    name = report.called or report.method
    head = f"{name} ({report.variant}), protecting one {report.unit}, delta = {delta_text(report.delta)}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [Text(sentence, style="dim") for sentence in compared_words({"unit": report.unit})]
    for name, view in report.views.items():
        said = f"{name}: {_sentence(view, report.against(name))}"
        parts.append(Text(said, style="bold red" if report.refutes(name) else ""))
    for finding in report.findings:
        parts.append(
            Text(f"Tier {finding.tier}, {finding.name}: {finding.sentence}", style="red" if finding.refuted else "")
        )
    parts.append(Text(f"{report.trials:,} trials, {report.seconds:.1f} s", style="dim"))
    return Group(*parts)


def _sentence(view: ViewReport, against: Sequence[Finding]) -> str:
    """What the audit says of one observer, and by which attack or which findings against the claim.

    A bound at 95 % may lie above a true claim by chance: then the one that decides, at 99.9 %, stands beside it.
    """
    if math.isinf(view.claimed):
        return "nothing is claimed: epsilon is infinite."
    said, verdict = f"audit at {_percent(SAID)}: epsilon >= {bound_words(view.bound)}", "consistent"
    if view.refuted or against:
        verdict = f"REFUTED at {_percent(SURE)}"
    elif view.bound > view.claimed:
        said += f", at {_percent(SURE)}: epsilon >= {bound_words(view.surely)}"
        verdict = f"consistent at {_percent(SURE)}"
    if against and not view.refuted:
        by = ", ".join(dict.fromkeys(f"tier {one.tier}: {one.name}" for one in against))
    else:
        by = "" if view.best is None else view.best.name
    said += f"; claimed <= {epsilon_text(view.claimed)}"
    if view.true is not None:
        said += f" as published, <= {epsilon_text(view.true)} by the ledger"
    return f"{said}; {verdict}{f' ({by})' if by else ''}."


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"
