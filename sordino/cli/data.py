"""`sordino data`: list data sets, fetch one, show a partition, draft a schema, normalise columns privately (a run)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import (
    TABLES,
    Categorical,
    DataDir,
    Delta,
    Drop,
    Json,
    Keys,
    Person,
    ProtectFrom,
    StoreFolder,
    experiment_from,
    parts,
    taking,
)
from sordino.experiment.defaults import DEFAULT_STORE, FEW_SITES, FOR_TABLES, LEAST_RECORDS, in_store

if TYPE_CHECKING:
    from sordino.data.schema import Schema
    from sordino.experiment.private_scaling import Normalised

DEFAULT_COST = 0.5
"""Epsilon of a normalisation where nothing else is said."""
DEFAULT_SHARE = 0.1
"""Share of a budget's mu^2 that a normalisation costs where nothing else is said."""
MOST_SHARES = 12
"""Most classes whose shares are printed."""
COUNTED = (
    "Sizes and shares of classes are counted in the records, without noise: keep them to whoever holds the records."
)
"""Sentence beside the figures of `data show`."""
data_commands = typer.Typer(
    help="Data sets: what is known and where it was looked for; fetch one; look at a partition.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@data_commands.callback()
def list_data(context: typer.Context, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the known data sets: which are present, and where they were looked for."""
    if context.invoked_subcommand is not None:
        return
    from sordino.data import catalogue

    entries = catalogue(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], default=str))
        return
    from rich.console import Console

    from sordino.report.terminal.columns import Column, Fitting

    columns = (
        *(Column("name", left=True), Column("present", left=True), Column("records"), Column("classes", 1)),
        *(Column("shape", 2), Column("what", 3, left=True), Column("where", 4, left=True)),
    )
    rows = []
    for entry in entries:
        there = "built in" if entry.name == "digits" else "yes"
        shape = "x".join(str(size) for size in entry.shape)
        figures = (f"{entry.records:,}", str(entry.classes), shape, entry.title, str(entry.found_at or ""))
        rows.append((entry.name, there if entry.present else "–", *figures))
    console = Console(markup=False)
    console.print(Fitting(columns, rows), highlight=False)
    folders = dict.fromkeys(str(folder.parent) for entry in entries for folder in entry.looked_in)
    console.print(f"Looked in: {', '.join(folders)}", style="dim", highlight=False)
    console.print("Fetch one with `sordino data get NAME`, or point --data-dir to a folder.", style="dim")


@data_commands.command()
def get(
    name: Annotated[str, typer.Argument(help="A known data set.")], data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Fetch a data set from its official home and check its contents."""
    from rich.console import Console
    from rich.progress import Progress

    from sordino.data import get as fetch

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)

        def show(file: str, done: int, total: int | None) -> None:
            progress.update(task, description=file, completed=done, total=total)

        folder = fetch(name, data_dir, progress=show)
    typer.echo(json.dumps({"name": name, "folder": str(folder)}) if as_json else f"{name} is in {folder}")


@data_commands.command()
@taking(*TABLES, "data_dir")
def show(
    keys: Keys,
    name: Annotated[str, typer.Argument(help="A known data set, or a folder of own files.")],
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet:0.5, shards:2, labels:20%, natural")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the label distribution into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Deal a data set to clients and show what each would hold."""
    from sordino.data import draw, summary
    from sordino.experiment.prepare import deal

    dealt = deal(experiment_from(None, keys | {"data": name, "partition": partition, "clients": clients, "seed": seed}))
    found = summary(dealt)
    if picture is not None:
        draw(dealt, picture)
    not_covered = [COUNTED, *dealt.disclosed]
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"notes": dealt.notes, "not_covered": not_covered}, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(f"{found.name}: {found.total:,} records, {found.clients} clients", "min", "median", "max")
    for title, spread in (
        ("training records a client", found.sizes),
        ("classes a client", found.classes_per_client),
    ):
        table.add_row(title, str(spread.smallest), f"{spread.median:g}", str(spread.largest))
    console = Console(markup=False)
    console.print(table)
    console.print(f"Smallest client: {found.smallest_client}", highlight=False)
    shares = [f"{name}: {count / max(1, found.train):.1%}" for name, count in found.labels.items()]
    more = f" and {len(shares) - MOST_SHARES} more" if len(shares) > MOST_SHARES else ""
    console.print(f"Training records of each class: {', '.join(shares[:MOST_SHARES])}{more}", highlight=False)
    for note in dealt.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False)
    for sentence in not_covered:
        console.print(f"Not covered by any epsilon: {sentence}", style="yellow", highlight=False)
    if picture is not None:
        console.print(f"Label distribution: {picture}", highlight=False)


@data_commands.command()
def schema(
    folder: Annotated[Path, typer.Argument(help="A folder with one CSV or Parquet file per client.")],
    label: Annotated[str, typer.Option(help="The column that is to be predicted.")] = "label",
    task: Annotated[
        str | None,
        typer.Option(
            help="What is predicted: classification, regression (a number) or survival (--label is the time, --event "
            "whether it happened). [default: regression where the label looks like a number]"
        ),
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="The column that says whether the event happened at the time in --label.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="The label that is looked for. [default: the rarer of two]")
    ] = None,
    drop: Drop = None,
    categorical: Categorical = None,
    bins: Annotated[
        str | None,
        typer.Option(
            help="Bounds that group a label that is a number into classes: 50,60 makes three. [default: labels are "
            "classes]"
        ),
    ] = None,
    missing_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=CODE,...",
            help="Numbers that stand for a missing value in a column: chol=0,age=999. [default: none]",
        ),
    ] = None,
    person: Person = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the schema goes.")] = Path("schema.toml"),
    as_json: Json = False,
) -> None:
    """Look at your own tables and write what their columns seem to be into a file, with questions for you to answer
    there."""
    from sordino.data.draft import draft
    from sordino.errors import UserError, writing
    from sordino.util.files import read_file, write_whole

    wishes: dict[str, Any] = {"drop": parts(drop) or (), "categorical": parts(categorical) or ()}
    wishes |= {
        "task": task,
        "event": event,
        "bins": _bounds(bins),
        "missing_codes": _codes(missing_code),
        "person": person,
    }
    made = draft(folder, label, positive, **wishes)
    with writing(output):
        if output.is_file() and read_file(output) != made.text.encode():
            raise UserError(f"{output} is there and may hold your answers: name another file with -o, or delete it.")
        write_whole(output, made.text)
    if as_json:
        typer.echo(json.dumps({"file": str(output), "questions": made.questions, "schema": made.schema.document()}))
        return
    columns = made.schema.columns
    typer.echo(f"{output}: {len(columns)} columns of {made.files} files, {len(made.schema.features())} features")
    for question in made.questions:
        typer.echo(f"- {question}")
    typer.echo("What is told of the records here was counted in them, and no epsilon covers it: keep it to yourself.")
    typer.echo("Check it: enter ranges and values that are public knowledge, and mark these columns public = true.")
    run = f"sordino run --data {quote(str(folder))} --schema {quote(str(output))}"
    typer.echo(f"Then: {run}{_level(made.files, person is not None)}")


@data_commands.command()
def normalise(
    folder: Annotated[Path, typer.Argument(help="A folder with one CSV or Parquet file per client.")],
    schema: Annotated[Path, typer.Option(help="What its columns are; numbers must have ranges.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon that it may cost each record. [default: 0.5, where no --budget is given]"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="In place of --epsilon: what normalisation and training may cost together. A share of it is used, "
            "and the epsilon that is left for training printed."
        ),
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of the budget (of mu^2) that normalisation costs. [default: 0.1]")
    ] = None,
    delta: Delta = None,
    protect_from: ProtectFrom = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the schema with means goes. [default: the same file]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated noise.")] = 0,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Private normalisation: release means and deviations of numbers with noise, once, and put them into the schema.

    Clients share the noise, unless it is planned against the server. This is a run in the store; its cost adds to that
    of later runs on the same people.
    """
    from sordino.data.draft import EXPLANATION, toml
    from sordino.data.schema import Schema
    from sordino.errors import UserError, check_writable, writing
    from sordino.experiment.private_scaling import normalise as release
    from sordino.util.files import write_whole

    if epsilon is not None and budget is not None:
        raise UserError("Give either --epsilon, what normalisation costs, or --budget, of which it costs a share.")
    if share is not None and budget is None:
        raise UserError("--share is a share of --budget: give that too.")
    path = output or schema
    given = Schema.read(schema)
    check_writable(path)  # before any budget is spent
    keys: dict[str, Any] = {"seed": seed, "delta": delta, "protect_from": protect_from}
    if budget is None:
        found = release(folder, given, DEFAULT_COST if epsilon is None else epsilon, store, **keys)
    else:
        found = release(folder, given, budget, store, DEFAULT_SHARE if share is None else share, **keys)
    with writing(path):
        head = [f"What the columns of {folder.name} are.", "", *EXPLANATION]
        write_whole(path, toml(found.schema, head, {}))
    cost = found.summary
    if as_json:
        released = {"file": str(path), "columns": found.columns, "noise": found.noise, "epsilon_left": found.left}
        released |= {"least_deviation": found.least, "at_least_deviation": found.at_least}
        told = ("run", "epsilon", "epsilon_rows", "delta", "protect_from", "neighbours", "not_covered")
        typer.echo(json.dumps(released | {name: getattr(cost, name) for name in told}))
        return
    _show_normalised(found, path)
    if budget is None:
        return
    if found.left is None:
        typer.echo(
            f"What is left of {budget:g} is not known, because earlier runs sampled records or promise nothing: "
            f"`sordino run --budget-over-runs {budget:g}` refuses a run that is too costly."
        )
    elif found.left == 0:
        typer.echo(f"Of {budget:g}, nothing is left for training.")
    else:
        shown = {"--epsilon": found.left, "--delta": cost.delta, "--budget-over-runs": budget}
        options = [f"{name} {value}" for name, value in shown.items()]
        options += [] if protect_from is None else [f"--protect-from {protect_from}"]
        typer.echo(
            f"Of {budget:g}, {found.left} is left for training: sordino run --data {quote(str(folder))} --schema "
            f"{quote(str(path))}{_summing(folder, found.schema)} {' '.join(options)}{in_store(store)}"
        )


def _show_normalised(found: Normalised, path: Path) -> None:
    """Print what normalisation released, and its cost."""
    from rich.console import Console

    from sordino.report.terminal.results import privacy_parts

    cost = found.summary
    typer.echo(f"{path}: means and deviations of {', '.join(found.columns)}")
    typer.echo(f"The noise on each mean has a standard deviation of {found.noise:.2g} half ranges.")
    held = f": {', '.join(found.at_least)} would have less" if found.at_least else ""
    typer.echo(f"No deviation is set below {found.least:.2g} half ranges, which may be noise{held}.")
    typer.echo(f"The run {cost.run} cost each {cost.unit}, and later runs on the same people add to it:")
    Console(markup=False).print(*privacy_parts(cost), sep="\n", highlight=False)


def _bounds(given: str | None) -> list[float]:
    """The bounds of --bins as numbers."""
    return [_finite(text, "--bins", "--bins 50,60") for text in parts(given) or ()]


def _codes(given: Sequence[str] | None) -> dict[str, list[float]]:
    """The numbers of --missing-code by column."""
    codes: dict[str, list[float]] = {}
    for text in parts(given) or ():
        column, _, code = text.rpartition("=")
        codes.setdefault(column, []).append(_finite(code, "--missing-code", "--missing-code chol=0,age=999"))
    return codes


def _finite(text: str, option: str, example: str) -> float:
    """A number that an option holds."""
    from sordino.errors import UserError, quoted

    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{option} has {quoted(text)} where a number belongs: write it as in {example}.")
    return number


def _summing(folder: Path, schema: Schema) -> str:
    """Option that names the method with shared noise, where a run on these tables would not have it anyway."""
    from sordino.experiment.config import Experiment
    from sordino.experiment.prepare import choose_method

    chosen, _ = choose_method(Experiment.make({"data": str(folder), "table": schema}))
    wanted = FOR_TABLES["method"]
    return "" if chosen.method == wanted else f" --method {wanted}"


def _level(clients: int, persons: bool) -> str:
    """Comment on a run with so few clients, which protects single records, or persons, where sites have enough."""
    if clients > FEW_SITES:
        return ""
    who, rows = ("persons", "persons") if persons else ("single records", "training records")
    return f"  # protects {who}, where sites have {LEAST_RECORDS} {rows} or more"
