"""Plans for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sordino.experiment.plan import PlanForRecords
from sordino.privacy.plan import Plan
from sordino.report.columns import Column, Fitting
from sordino.report.tables import epsilon_text, views_table
from sordino.report.wording import compared_words
from sordino.rounding import delta_text

SINGLE = 12
"""Up to so many clients are told one by one; more are told by their budgets."""


def plan_report(plan: Plan | PlanForRecords, protect_from: str) -> RenderableType:
    """A plan in words."""
    parts = _of_records(plan) if isinstance(plan, PlanForRecords) else _of_clients(plan, protect_from)
    parts += [Text(f"Warning: {sentence}", style="yellow") for sentence in plan.warnings]
    parts += [Text(sentence) for sentence in plan.advice]
    return Group(*parts)


def _of_clients(plan: Plan, protect_from: str) -> list[RenderableType]:
    return [
        Text(f"noise multiplier {plan.noise_multiplier:.4g} for the {protect_from}, each round", style="bold"),
        "",
        views_table(plan.epsilon, plan.attack_accuracy),
        Text(f"at delta = {delta_text(plan.delta)}; protects one client"),
        *(Text(sentence) for sentence in compared_words({"unit": "client"})),
        Text(f"The RDP accountant of the papers would print {epsilon_text(plan.rdp_epsilon)}.", style="dim"),
        "",
    ]


def _of_records(plan: PlanForRecords) -> list[RenderableType]:
    replaced = epsilon_text(plan.epsilon_replace_one)
    return [
        Text(f"noise multiplier {plan.noise_multiplier:.4g} for each gradient, median over clients", style="bold"),
        "",
        views_table(plan.epsilon, plan.attack_accuracy),
        Text(
            f"at delta = {delta_text(plan.delta)}; protects one record of the client that spends most; for one whose "
            f"contents are replaced by others: at most {replaced}"
        ),
        *(Text(sentence) for sentence in compared_words(vars(plan))),
        "",
        _clients_table(plan.clients),
    ]


def _clients_table(clients: Sequence[dict[str, Any]]) -> RenderableType:
    """Each client's noise, or, where clients are many, those of each budget together."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, client in enumerate(clients):
        groups.setdefault(number if len(clients) <= SINGLE else client["budget"], []).append(client)
    columns = [
        *(Column("clients"), Column("records", 2), Column("budget"), Column("epsilon")),
        *(Column("noise", 1), Column("steps a round", 4), Column("rounds", 3)),
    ]
    rows = []
    for group in groups.values():
        budget = group[0]["budget"]
        rows.append(
            [
                group[0]["client"] if len(clients) <= SINGLE else str(len(group)),
                _span(group, "records", "{:,}"),
                "\u2013" if budget is None else f"{budget:g}",
                _span(group, "epsilon", ""),
                _span(group, "noise_multiplier", "{:.3g}"),
                _span(group, "steps", "{}"),
                _span(group, "turns", "{}"),
            ]
        )
    heading = "client" if len(clients) <= SINGLE else "clients"
    return Fitting([Column(heading, left=len(clients) <= SINGLE), *columns[1:]], rows)


def _span(group: Sequence[dict[str, Any]], key: str, form: str) -> str:
    """The smallest and the largest value of a group, or the only one."""
    values = [float("inf") if client[key] is None else client[key] for client in group]
    ends = [epsilon_text(end) if key == "epsilon" else form.format(end) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
