"""The command that tells what a run would cost, before any budget is spent."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sordino.cli.options import DATA, NOISE, SCHEDULE, File, Json, Keys, experiment_from, taking
from sordino.cli.run import getting_ready

LOOKED_AT = {*DATA, "model"} - {"clients"}
"""The options for which data and network are looked at: without them, or a file, a plan is arithmetic alone."""


@taking(*DATA, "model", "method", "variant", "privacy", *SCHEDULE, "epsilon", *NOISE, "seed", "set")
def plan(
    keys: Keys,
    experiment: File = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            help="How many parameters would be shared. [default: the network's, where data or model are named]",
            min=1,
            max=1_000_000_000_000,
        ),
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="Training records of a client. [default: as in the data]", min=1, max=10**9)
    ] = None,
    as_json: Json = False,
) -> None:
    """Before any budget is spent: noise, epsilon for every observer, feasibility, advice.

    Where records are protected, the noise of each client follows from its own budget and number of records.
    """
    from dataclasses import asdict

    with getting_ready(as_json):
        from sordino.experiment.plan import plan_of

        chosen = experiment_from(experiment, keys)
        look = experiment is not None or any(keys[key] is not None for key in LOOKED_AT)
        found = plan_of(chosen, parameters, records, look)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    from rich.console import Console

    from sordino.report.plans import plan_report

    Console(markup=False).print(plan_report(found, chosen.protect_from), highlight=False)
