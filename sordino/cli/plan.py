"""Commands that tell before any budget is spent: what a run would cost, and which methods there are."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sordino.cli.options import (
    AllowVacuous,
    Clients,
    Data,
    DataDir,
    Delta,
    Epsilon,
    File,
    Json,
    Label,
    Model,
    NoiseMultiplier,
    Participation,
    ProtectFrom,
    Rounds,
    experiment_from,
)


def plan(
    experiment: File = None,
    clients: Clients = None,
    rounds: Rounds = None,
    epsilon: Epsilon = None,
    noise_multiplier: NoiseMultiplier = None,
    delta: Delta = None,
    protect_from: ProtectFrom = None,
    participation: Participation = None,
    parameters: Annotated[
        int | None, typer.Option(help="How many parameters would be shared.", min=1, max=1_000_000_000_000)
    ] = None,
    data: Data = None,
    data_dir: DataDir = None,
    label: Label = None,
    model: Model = None,
    allow_vacuous_delta: AllowVacuous = False,
    as_json: Json = False,
) -> None:
    """Before any budget is spent, where whole clients are protected: noise, epsilon for every observer, feasibility."""
    from dataclasses import asdict

    from sordino.experiment.plan import plan_of

    given = {**locals(), "set": None}
    chosen = experiment_from(experiment, {key: given[key] for key in given if key != "parameters"})
    found = plan_of(chosen, parameters, with_model=bool(data or model or experiment))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    from rich.console import Console

    from sordino.report.tables import plan_report

    Console(markup=False).print(plan_report(found, chosen.protect_from), highlight=False)


def methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's table of methods.")] = False,
    as_json: Json = False,
) -> None:
    """What each method is, what leaves a client, and for whom its epsilon holds."""
    from sordino.report.catalogue import describe_methods, methods_markdown

    if markdown:
        typer.echo(methods_markdown())
        return
    found = describe_methods()
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what it does", "unit", "what leaves a client", "epsilon holds for", show_lines=True)
    for item in found:
        leaves = "\n".join(f"{name}: {what}" for name, what in item["releases"].items()) or "nothing"
        holds = "\n".join(f"{v}: {', '.join(x['views']) or 'nobody'}" for v, x in item["variants"].items())
        table.add_row(item["name"], f"{item['title']}\n[dim]{item['paper']}[/dim]", item["unit"], leaves, holds)
    Console().print(table)
