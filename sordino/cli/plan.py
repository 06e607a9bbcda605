"""The command that tells what a run would cost, before any budget is spent."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sordino.cli.options import (
    AllowVacuous,
    Categorical,
    Clients,
    Data,
    DataDir,
    Delta,
    Drop,
    Epsilon,
    File,
    Json,
    Label,
    Labels,
    MethodName,
    Model,
    NoiseMultiplier,
    Participation,
    Partition,
    Privacy,
    ProtectFrom,
    Rounds,
    SchemaFile,
    Seed,
    Set,
    Variant,
    experiment_from,
)
from sordino.cli.run import getting_ready

LOOKED_AT = ("data", "data_dir", "label", "labels", "schema", "drop", "categorical", "partition", "model", "experiment")
"""The options for which data and network are looked at: without them a plan is arithmetic alone."""


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
    method: MethodName = None,
    variant: Variant = None,
    privacy: Privacy = None,
    data: Data = None,
    data_dir: DataDir = None,
    label: Label = None,
    labels: Labels = None,
    schema: SchemaFile = None,
    drop: Drop = None,
    categorical: Categorical = None,
    partition: Partition = None,
    model: Model = None,
    seed: Seed = None,
    set: Set = None,
    allow_vacuous_delta: AllowVacuous = False,
    as_json: Json = False,
) -> None:
    """Before any budget is spent: noise, epsilon for every observer, feasibility, advice.

    Where records are protected, the noise of each client follows from its own budget and number of records.
    """
    given = locals()
    from dataclasses import asdict

    with getting_ready(as_json):
        from sordino.experiment.plan import plan_of

        chosen = experiment_from(experiment, {key: value for key, value in given.items() if key != "records"})
        found = plan_of(chosen, parameters, records, look=any(given[key] is not None for key in LOOKED_AT))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    from rich.console import Console

    from sordino.report.plans import plan_report

    Console(markup=False).print(plan_report(found, chosen.protect_from), highlight=False)
