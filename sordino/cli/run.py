"""Commands that make runs, take them up, compare them and list them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import (
    DEFAULT_STORE,
    AllowVacuous,
    BudgetOverRuns,
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
    Personal,
    Privacy,
    ProtectFrom,
    Rounds,
    SchemaFile,
    Seed,
    Set,
    StoreFolder,
    Variant,
    WorkerCount,
    experiment_from,
)
from sordino.errors import Stopped
from sordino.report.terminal import shown


class RunStoppedError(Exception):
    """Ctrl-C while a run was under way. Typer takes a KeyboardInterrupt away, and with it what it says."""


@contextlib.contextmanager
def watched(as_json: bool) -> Iterator[Any]:
    from sordino.report.progress import watching

    try:
        with watching(quiet=as_json) as watch:
            yield watch
    except Stopped as stop:
        raise RunStoppedError(str(stop)) from stop


def run(
    experiment: File = None,
    data: Data = None,
    data_dir: DataDir = None,
    label: Label = None,
    labels: Labels = None,
    schema: SchemaFile = None,
    drop: Drop = None,
    categorical: Categorical = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    method: MethodName = None,
    variant: Variant = None,
    privacy: Privacy = None,
    personal: Personal = None,
    rounds: Rounds = None,
    participation: Participation = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    protect_from: ProtectFrom = None,
    allow_vacuous_delta: AllowVacuous = False,
    budget_over_runs: BudgetOverRuns = None,
    seed: Seed = None,
    workers: WorkerCount = None,
    store: StoreFolder = None,
    set: Set = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the run is executed, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment. Without arguments: the built-in example on real data."""
    chosen = experiment_from(experiment, locals())
    from sordino.experiment.prepare import prepare
    from sordino.experiment.run import start

    prepared = prepare(chosen)
    reasons = prepared.choice.reasons if explain else []
    if not as_json:
        for sentence in (*reasons, *(f"Note: {note}" for note in prepared.notes)):
            typer.echo(sentence)
    with watched(as_json) as watch:
        result = start(prepared, watch=watch(None, chosen.rounds))
    told = [] if as_json else prepared.notes  # before the run
    shown_after = {"notes": [note for note in result["notes"] if note not in told]}
    show_result(result | shown_after | ({"execution": reasons} if explain else {}), chosen.store, as_json)


def resume(
    run: Annotated[str, typer.Argument(help="The run's name (`sordino runs`).")],
    store: StoreFolder = None,
    workers: WorkerCount = None,
    as_json: Json = False,
) -> None:
    """Take up a stopped run: it ends with the numbers it would have had."""
    from sordino.experiment.run import resume as resume_run
    from sordino.experiment.store import Store

    folder = store or DEFAULT_STORE
    found = Store(folder, must_exist=True)
    with watched(as_json) as watch:
        result = resume_run(run, found, watch(None, found.get(run).rounds), workers)
    show_result(result, folder, as_json)


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
    labels: Labels = None,
    schema: SchemaFile = None,
    drop: Drop = None,
    categorical: Categorical = None,
    partition: Partition = None,
    clients: Clients = None,
    model: Model = None,
    variant: Variant = None,
    privacy: Privacy = None,
    personal: Personal = None,
    rounds: Rounds = None,
    participation: Participation = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    protect_from: ProtectFrom = None,
    allow_vacuous_delta: AllowVacuous = False,
    budget_over_runs: BudgetOverRuns = None,
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
    chosen = experiment_from(experiment, given, [contender(name)[0] for name in names])
    picture = picture or chosen.store / "compare.png"
    check_picture(picture)
    with watched(as_json) as watch:
        found = compare_methods(chosen, names, seeds, lambda name, seed: watch(f"{name}, seed {seed}", chosen.rounds))
    curves(found.rows, picture)
    if as_json:
        rows = [{key: value for key, value in row.items() if key != "curves"} for row in found.rows]
        told = {"verdict": found.verdict, "over_runs": found.over_runs, "picture": str(picture)}
        typer.echo(json.dumps({"rows": rows, **told}))
        return
    from rich.console import Console

    console = Console(markup=False)
    console.print(comparison_table(found.rows))
    show_meaning(found.rows, console)
    for sentence in (*found.verdict, *found.together(chosen.protect_from)):
        console.print(sentence, highlight=False)
    console.print(f"Curves: {picture}", style="dim", highlight=False)


def show_meaning(rows: list[dict[str, Any]], console: Any) -> None:
    """At which delta and for which unit a comparison's epsilons hold, what they leave out, and what to know besides."""
    meanings: dict[str, list[str]] = {}
    for row in rows:
        meanings.setdefault(f"delta = {row['delta']:.3g}, protecting one {row['unit']}", []).append(row["method"])
    for meaning, names in meanings.items():
        whose = "" if len(meanings) == 1 else f": {', '.join(names)}"
        console.print(f"epsilon at {meaning}{whose}", style="dim", highlight=False)
    for reason in dict.fromkeys(reason for row in rows for reason in row["not_covered"]):
        console.print(f"Not covered: {reason.rstrip('.')}.", style="red", highlight=False)
    for note in dict.fromkeys(note for row in rows for note in row["notes"]):
        console.print(f"Note: {note}", style="yellow", highlight=False)


def runs(store: StoreFolder = None, as_json: Json = False) -> None:
    """The runs of a store, newest first."""
    from sordino.experiment.store import runs_in

    found = runs_in(store or DEFAULT_STORE)
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


def show_result(result: Mapping[str, Any], folder: Path, as_json: bool, measured: str | None = None) -> None:
    """A run's summary, and what all runs on the same people have come to."""
    from sordino.experiment.lifetime import over_runs, sentence
    from sordino.experiment.store import Store

    store = Store(folder, must_exist=True)
    total = over_runs(store, store.get(result["run"]).people, result["unit"], result["delta"])
    store.close()
    if as_json:
        typer.echo(json.dumps({**result, "over_runs": total}))
        return
    from rich.console import Console

    from sordino.report.tables import SIMULATED, run_report

    console = Console(markup=False)
    console.print(run_report(result, str(folder), measured or SIMULATED), highlight=False)
    together = sentence(total, result["protect_from"])
    if together:
        console.print(together, highlight=False)
