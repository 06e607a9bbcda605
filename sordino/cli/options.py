"""The options that commands share: the keys of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

File = Annotated[Path | None, typer.Argument(help="An experiment file (TOML); its keys are these options.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
StoreFolder = Annotated[Path | None, typer.Option("--store", help="The folder for runs. [default: .sordino]")]
DEFAULT_STORE = Path(".sordino")
Data = Annotated[str | None, typer.Option(help="A known data set (`sordino data`) or a folder of own files.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets lie. [default: $SORDINO_DATA]")]
Label = Annotated[str | None, typer.Option(help="The label column of own tabular data.")]
Partition = Annotated[
    str | None,
    typer.Option(help="iid, dirichlet:0.5, shards:2, labels:20%, natural. [default: natural if there]"),
]
Clients = Annotated[int | None, typer.Option(help="How many clients. [default: all natural ones, else 100]")]
Model = Annotated[str | None, typer.Option(help="A network, or your own as package.module:Class.")]
MethodName = Annotated[str | None, typer.Option(help="A method (`sordino methods`). [default: feddpa]")]
Variant = Annotated[str | None, typer.Option(help="sound (epsilon holds) or paper (as published).")]
Privacy = Annotated[str | None, typer.Option(help="dp, or none: nothing is clipped or noised. [default: dp]")]
Personal = Annotated[
    str | None, typer.Option(help="own (the method's), or blend (with the server's and local ones). [default: own]")
]
Rounds = Annotated[int | None, typer.Option(help="How many rounds. [default: 30]")]
Participation = Annotated[float | None, typer.Option(help="The share of clients in a round. [default: 1]")]
Epsilon = Annotated[float | None, typer.Option(help="The budget of the protected observer. [default: 8]")]
Delta = Annotated[float | None, typer.Option(help="Of the budget. [default: min(1e-5, N^-1.1/10) for N units]")]
NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise over sensitivity, in place of epsilon.")]
ProtectFrom = Annotated[str | None, typer.Option(help="outsider (sees sums and models) or server.")]
BudgetOverRuns = Annotated[
    float | None, typer.Option(help="Refuse a run with which all runs on these people would come to more epsilon.")
]
Labels = Annotated[str | None, typer.Option(help="The labels that own data may have: declared, they are public.")]
SchemaFile = Annotated[
    Path | None, typer.Option("--schema", help="What the columns of own tabular data are (`sordino data schema`).")
]
Drop = Annotated[str | None, typer.Option(help="Columns of own tabular data to leave out: a,b,c.")]
Categorical = Annotated[str | None, typer.Option(help="Columns whose values have no order: a,b,c.")]
AllowVacuous = Annotated[bool, typer.Option(help="Admit a delta that promises nothing, with a warning.")]
Seed = Annotated[int | None, typer.Option(help="Of partition, initial model, batches, simulated noise.")]
WorkerCount = Annotated[int | None, typer.Option("--workers", help="Processes. [default: one per core]")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value, e.g. method.tau=0.3; repeatable.")]


def experiment_from(file: Path | None, given: dict[str, Any], methods: Sequence[str] = ()) -> Any:
    """The experiment that a file and options describe."""
    from sordino.experiment.config import Experiment, setting

    keys = {key: value for key, value in given.items() if key in Experiment.model_fields}
    keys["set"] = dict(setting(text) for text in given.get("set") or [])
    for key in ("labels", "drop", "categorical"):
        if keys.get(key):
            keys[key] = [part.strip() for part in keys[key].split(",")]
    keys["schema"] = given.get("schema")
    if not keys.get("allow_vacuous_delta"):
        keys["allow_vacuous_delta"] = None
    if file is None:
        return Experiment.make(keys, methods=methods)
    return Experiment.read(file, keys, methods=methods)
