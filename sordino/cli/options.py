"""Options that commands share: the keys of an experiment.

A command lists the keys that it takes with `taking`; the name and the help of each option are here, once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.experiment.defaults import DEFAULT_STORE

File = Annotated[
    Path | None,
    typer.Argument(help="An experiment file (TOML); its keys are these options. [default: the built-in example]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
STORE = f"The folder for runs. [default: {DEFAULT_STORE}]"
StoreFolder = Annotated[Path, typer.Option("--store", help=STORE, show_default=False)]
StoreOrNone = Annotated[Path | None, typer.Option("--store", help=STORE)]
"""Folder of the store, where the experiment may name another."""
Data = Annotated[
    str | None,
    typer.Option(help="A known data set (`sordino data`) or a folder of own files. [default: digits, built in]"),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets lie. [default: $SORDINO_DATA, else the cache folder]")
]
Label = Annotated[str | None, typer.Option(help="The label column of own tabular data. [default: label]")]
Task = Annotated[
    str | None,
    typer.Option(
        help="What is predicted: classification, regression (the label is a number) or survival (the label is a time, "
        "see --event). [default: what the schema declares, else classification]"
    ),
]
Event = Annotated[
    str | None,
    typer.Option(help="For survival without a schema: the column that is 1 where the event happened, else 0."),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How records are dealt: iid, dirichlet:0.5 (labels), quantity:0.5 (sizes), either with ,min=20 for the "
        "least records of a client, shards:2, labels:20%, natural, or a function of your own as "
        "package.module:function. [default: natural where records have owners, else dirichlet:0.5]"
    ),
]
Clients = Annotated[int | None, typer.Option(help="How many clients. [default: all natural ones, else 100]")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A network (`sordino models`), or your own as package.module:Class. [default: a small one for the data]"
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        help="A frozen function of one record before the network: scattering (images), scattering:pool=3,width=128, "
        "your own as backbone.py:factory, a torch.export program, or none. [default: none]"
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="A method (`sordino methods`), or your own as package.module:Class. [default: dp-fedsgd with "
        "personal=recalibrate for tables at up to 50 sites, else dp-fedavg with clipping=quantile and personal=blend]"
    ),
]
Variant = Annotated[
    str | None,
    typer.Option(help="sound (epsilon holds) or paper (as published). [default: sound]"),
]
Privacy = Annotated[str | None, typer.Option(help="dp, or none: nothing is clipped or noised. [default: dp]")]
Personal = Annotated[
    str | None,
    typer.Option(
        help="What a client predicts with: own (the method's model), blend (mixed with the server's and local ones), "
        "or recalibrate (the server's model, fitted to the client's records). [default: blend or recalibrate where "
        "no method is named, else own]"
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(help="How many rounds. [default: 30; for tables at a few sites, where no method is named, 60]"),
]
Participation = Annotated[float | None, typer.Option(help="The share of clients in a round. [default: 1]")]
Epsilon = Annotated[float | None, typer.Option(help="The budget of the protected observer. [default: 8]")]
Delta = Annotated[float | None, typer.Option(help="Delta of the budget. [default: min(1e-5, N^-1.1/10) for N units]")]
NoiseMultiplier = Annotated[
    float | None,
    typer.Option(help="Noise over sensitivity, in place of epsilon. [default: computed from the budget]"),
]
ProtectFrom = Annotated[str | None, typer.Option(help="outsider (sees sums and models) or server. [default: outsider]")]
BudgetOverRuns = Annotated[
    float | None,
    typer.Option(
        help="Refuse a run if all runs on these people together would exceed this epsilon. [default: no limit]"
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="The labels that own data may have, separated by commas: declared, they are public. [default: those "
        "that occur, which epsilon does not cover]"
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", help="What the columns of own tabular data are (`sordino data schema`). [default: all are numbers]"
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Columns of own tabular data to leave out: a,b,c. [default: none]"),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Columns whose values have no order: a,b,c. [default: those of the schema]"),
]
Person = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column with a code of the person a row is about: persons are protected, with all of their rows. "
        "[default: that of the schema]",
    ),
]
AllowVacuous = Annotated[
    bool,
    typer.Option(
        "--allow-vacuous-delta", help="Admit a delta that promises nothing, with a warning. [default: it is refused]"
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of partition, initial model, batches and simulated noise. [default: 0]")
]
WorkerCount = Annotated[
    int | None, typer.Option("--workers", help="Processes; results do not depend on it. [default: one per core]")
]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Compute on a Ray cluster: auto (one that runs on this machine), ray://HOST:PORT, or local:N (N cores of "
        "this machine). Results do not depend on it. [default: this machine alone]",
    ),
]
PartOfNode = Annotated[
    str | None,
    typer.Option(
        "--per-run",
        metavar="cpus=N,gpus=N",
        help="With --cluster: cores and cards that each run has for itself. [default: cpus=1]",
    ),
]
Log = Annotated[
    str | None,
    typer.Option(help="Also log every round: tensorboard, mlflow or wandb (extras to install). [default: none]"),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key, or a hyper-parameter (`sordino methods NAME`), e.g. method.tau=0.3; repeatable.",
    ),
]

Keys = dict[str, Any]
"""Values of the options that `taking` adds to a command, by the keys of an experiment."""
OPTIONS: dict[str, Any] = {
    "data": Data,
    "data_dir": DataDir,
    "label": Label,
    "task": Task,
    "event": Event,
    "labels": Labels,
    "schema": SchemaFile,
    "drop": Drop,
    "categorical": Categorical,
    "person": Person,
    "partition": Partition,
    "clients": Clients,
    "features": Features,
    "model": Model,
    "method": MethodName,
    "variant": Variant,
    "privacy": Privacy,
    "personal": Personal,
    "rounds": Rounds,
    "participation": Participation,
    "epsilon": Epsilon,
    "delta": Delta,
    "noise_multiplier": NoiseMultiplier,
    "protect_from": ProtectFrom,
    "allow_vacuous_delta": AllowVacuous,
    "budget_over_runs": BudgetOverRuns,
    "seed": Seed,
    "workers": WorkerCount,
    "store": StoreOrNone,
    "set": Set,
}
"""Option of each key."""
UNSAID = {"allow_vacuous_delta": False}
"""Defaults of options that are not None."""
TABLES = ("label", "task", "event", "labels", "schema", "drop", "categorical", "person")
"""Keys on how the user's own tables are read."""
DATA = ("data", "data_dir", *TABLES, "partition", "clients")
"""Keys on records and how clients hold them."""
SCHEDULE = ("rounds", "participation")
NOISE = ("delta", "noise_multiplier", "protect_from", "allow_vacuous_delta")
"""Keys on noise, besides epsilon."""
TRAINING = ("features", "model", "method", "variant", "privacy", "personal", *SCHEDULE, "epsilon", *NOISE)
"""Keys on how models are trained, and on the budget."""
RUN = (*DATA, *TRAINING, "budget_over_runs", "seed", "workers", "store", "set")
"""Keys of a run."""
LISTS = ("labels", "drop", "categorical")
"""Keys whose values are separated by commas."""


def taking(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command: options for `keys` take the place of its parameter `keys`, which gets their values."""
    alone = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(key, alone, default=UNSAID.get(key), annotation=OPTIONS[key]) for key in keys]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters = [
            one
            for parameter in own.parameters.values()
            for one in (added if parameter.name == "keys" else [parameter.replace(kind=alone)])
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            taken = {key: given.pop(key) for key in keys}
            command(**given, keys=taken)

        # Typer reads both.
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return decorated


def experiment_from(file: Path | None, keys: Keys, methods: Sequence[str] = ()) -> Any:
    """Experiment that a file and options describe."""
    from sordino.experiment.config import Experiment

    given = given_keys(keys)
    if file is None:
        return Experiment.make(given, methods=methods)
    return Experiment.read(file, given, methods=methods)


def given_keys(keys: Keys) -> dict[str, Any]:
    """Keys of an experiment that options describe; None for those that nobody gave."""
    from sordino.experiment.config import settings_of

    given = {key: parts(value) if key in LISTS and value else value for key, value in keys.items()}
    given["set"] = settings_of(keys.get("set") or [])
    given["allow_vacuous_delta"] = (
        keys.get("allow_vacuous_delta") or None
    )  # what is not insisted on may stand in the file
    return given


def parts(given: str | Sequence[str] | None) -> list[str]:
    """Split a text, or each text of an option that is given several times, at commas."""
    texts = [given] if isinstance(given, str) else given or ()
    return [part.strip() for text in texts if text for part in text.split(",")]
