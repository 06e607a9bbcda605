"""The command line. Heavy imports stay inside commands, so that `sordino --help` answers at once."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sordino.cli.curve import curve_commands
from sordino.cli.data import data_commands
from sordino.errors import Stopped, UserError, quoted
from sordino.report.terminal import degrade, shown

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for options that it does not understand; by its base class, because typer brings its own click."""

app = typer.Typer(
    help="Personalized federated learning under adaptive differential privacy, with epsilons that are true.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands, name="data")
app.add_typer(curve_commands, name="curve")

File = Annotated[Path | None, typer.Argument(help="An experiment file (TOML); its keys are these options.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
StoreFolder = Annotated[Path | None, typer.Option("--store", help="The folder for runs. [default: .sordino]")]
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
Rounds = Annotated[int | None, typer.Option(help="How many rounds. [default: 30]")]
Participation = Annotated[float | None, typer.Option(help="The share of clients in a round. [default: 1]")]
Epsilon = Annotated[float | None, typer.Option(help="The budget of the protected observer. [default: 8]")]
Delta = Annotated[float | None, typer.Option(help="Of the budget. [default: min(1e-5, clients^-1.1/10)]")]
NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise over sensitivity, in place of epsilon.")]
ProtectFrom = Annotated[str | None, typer.Option(help="outsider (sees sums and models) or server.")]
AllowVacuous = Annotated[bool, typer.Option(help="Admit delta >= 1/clients, with a warning.")]
Seed = Annotated[int | None, typer.Option(help="Of partition, initial model, batches, simulated noise.")]
WorkerCount = Annotated[int | None, typer.Option("--workers", help="Processes. [default: one per core]")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value, e.g. method.tau=0.3; repeatable.")]


@app.command()
def run(
    experiment: File = None,
    data: Data = None,
    data_dir: DataDir = None,
    label: Label = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    method: MethodName = None,
    variant: Variant = None,
    rounds: Rounds = None,
    participation: Participation = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    protect_from: ProtectFrom = None,
    allow_vacuous_delta: AllowVacuous = False,
    seed: Seed = None,
    workers: WorkerCount = None,
    store: StoreFolder = None,
    set: Set = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the run is executed, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment. Without arguments: the built-in example on real data."""
    chosen = _experiment(experiment, locals())
    from sordino.experiment.prepare import prepare
    from sordino.experiment.run import start

    prepared = prepare(chosen)
    reasons = prepared.choice.reasons if explain else []
    if not as_json:
        for sentence in reasons:
            typer.echo(sentence)
    with _watching(as_json) as watch:
        result = start(prepared, watch=watch(None, chosen.rounds))
    _show_result(result | ({"execution": reasons} if explain else {}), chosen.store, as_json)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="The run's name (`sordino runs`).")],
    store: StoreFolder = None,
    workers: WorkerCount = None,
    as_json: Json = False,
) -> None:
    """Take up a stopped run: it ends with the numbers it would have had."""
    from sordino.experiment.run import resume as resume_run
    from sordino.experiment.store import Store

    folder = store or Path(".sordino")
    found = Store(folder, must_exist=True)
    with _watching(as_json) as watch:
        result = resume_run(run, found, watch(None, found.get(run).rounds), workers)
    _show_result(result, folder, as_json)


@app.command()
def compare(
    experiment: File = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; feddpa[tau=2,lambda1=0] for ablations.")
    ] = "local,dp-fedavg,feddpa",
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    picture: Annotated[Path | None, typer.Option(help="Where the curves go. [default: STORE/compare.png]")] = None,
    data: Data = None,
    data_dir: DataDir = None,
    label: Label = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    variant: Variant = None,
    rounds: Rounds = None,
    participation: Participation = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    protect_from: ProtectFrom = None,
    allow_vacuous_delta: AllowVacuous = False,
    seed: Seed = None,
    workers: WorkerCount = None,
    store: StoreFolder = None,
    set: Set = None,
    as_json: Json = False,
) -> None:
    """Run several methods with several seeds at equal true epsilon, and put them side by side."""
    from sordino.experiment.compare import compare as compare_methods
    from sordino.experiment.compare import contender, split_methods
    from sordino.report.figures import check_picture, curves
    from sordino.report.tables import comparison_table

    names = split_methods(methods)
    given = {**locals(), "method": None}
    chosen = _experiment(experiment, given, [contender(name)[0] for name in names])
    picture = picture or chosen.store / "compare.png"
    check_picture(picture)
    with _watching(as_json) as watch:
        found = compare_methods(chosen, names, seeds, lambda name, seed: watch(f"{name}, seed {seed}", chosen.rounds))
    curves(found.rows, picture)
    if as_json:
        rows = [{key: value for key, value in row.items() if key != "curves"} for row in found.rows]
        typer.echo(json.dumps({"rows": rows, "verdict": found.verdict, "picture": str(picture)}))
        return
    from rich.console import Console

    console = Console(markup=False)
    console.print(comparison_table(found.rows))
    if found.rows:
        units = " or ".join(sorted({row["unit"] for row in found.rows}))
        console.print(f"epsilon at delta = {found.rows[0]['delta']:.3g}, protecting one {units}", style="dim")
    for note in dict.fromkeys(note for row in found.rows for note in row["notes"]):
        console.print(f"Note: {note}", style="yellow", highlight=False)
    for sentence in found.verdict:
        console.print(sentence, highlight=False)
    console.print(f"Curves: {picture}", style="dim", highlight=False)


@app.command()
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
    model: Model = None,
    allow_vacuous_delta: AllowVacuous = False,
    as_json: Json = False,
) -> None:
    """Before any budget is spent: noise, epsilon for every observer, feasibility, advice."""
    from dataclasses import asdict

    from sordino.experiment.plan import plan_of

    given = {**locals(), "set": None}
    chosen = _experiment(experiment, {key: given[key] for key in given if key != "parameters"})
    found = plan_of(chosen, parameters, with_model=bool(data or model or experiment))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    from rich.console import Console

    from sordino.report.tables import plan_report

    Console(markup=False).print(plan_report(found, chosen.protect_from), highlight=False)


@app.command()
def methods(as_json: Json = False) -> None:
    """What each method is, what leaves a client, and for whom its epsilon holds."""
    from sordino.report.catalogue import describe_methods

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


@app.command()
def runs(store: StoreFolder = None, as_json: Json = False) -> None:
    """The runs of a store, newest first."""
    from sordino.experiment.store import runs_in

    found = runs_in(store or Path(".sordino"))
    if as_json:
        keys = ("run", "method", "state", "rounds_done", "rounds")
        typer.echo(json.dumps([{key: getattr(row, key) for key in keys} for row in found]))
        return
    from rich.console import Console
    from rich.table import Table

    from sordino.report.tables import epsilon_text, percent

    table = Table("run", "method", "state", "rounds", "personal", shown("ε outsider"))
    for row in found:
        done = row.summary
        figures = (
            (percent(done["accuracy"]["personal"]), epsilon_text(done["epsilon"]["outsider"])) if done else ("", "")
        )
        table.add_row(row.run, row.method, row.state, f"{row.rounds_done}/{row.rounds}", *figures)
    Console(markup=False).print(table if found else "No runs yet: `sordino run` makes one.")


def main() -> NoReturn:
    """Entry point: mistakes of the user end with one sentence and exit code 2."""
    degrade()
    try:
        code = app(standalone_mode=False) or 0
    except UserError as error:
        _refuse(str(error))
    except _StoppedError as stop:
        typer.echo(str(stop), err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{quoted(error.filename)} cannot be used: {error.strerror}.")
    except UsageError as error:
        if not error.format_message():  # a command without arguments has shown its help
            sys.exit(error.exit_code)
        _refuse(_usage(error))
    if code == INTERRUPTED:
        typer.echo("Stopped. `sordino runs` shows the run; `sordino resume RUN` takes it up.", err=True)
    sys.exit(code)


def _refuse(sentence: str) -> NoReturn:
    """Tell what was wrong, in one line even where a name or another's message has several."""
    # Not by typer's echo, which writes UTF-8 even to a terminal that knows only ASCII.
    print("Error: " + " ".join(sentence.split("\n")), file=sys.stderr)
    sys.exit(2)


def _usage(error: Any) -> str:
    """What is wrong with a command's options, with the command that lists them."""
    command = "sordino" if error.ctx is None else error.ctx.command_path
    return f"{error.format_message().rstrip('.')}; `{command} --help` shows what can be given."


def _experiment(file: Path | None, given: dict[str, Any], methods: Sequence[str] = ()) -> Any:
    """The experiment that a file and options describe."""
    from sordino.experiment.config import Experiment, setting

    keys = {key: value for key, value in given.items() if key in Experiment.model_fields}
    keys["set"] = dict(setting(text) for text in given.get("set") or [])
    if not keys.get("allow_vacuous_delta"):
        keys["allow_vacuous_delta"] = None
    if file is None:
        return Experiment.make(keys, methods=methods)
    return Experiment.read(file, keys, methods=methods)


class _StoppedError(Exception):
    """Ctrl-C while a run was under way. Typer takes a KeyboardInterrupt away, and with it what it says."""


@contextlib.contextmanager
def _watching(as_json: bool) -> Iterator[Any]:
    from sordino.report.progress import watching

    try:
        with watching(quiet=as_json) as watch:
            yield watch
    except Stopped as stop:
        raise _StoppedError(str(stop)) from stop


def _show_result(result: Mapping[str, Any], store: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    from rich.console import Console

    from sordino.report.tables import run_report

    Console(markup=False).print(run_report(result, str(store)), highlight=False)
