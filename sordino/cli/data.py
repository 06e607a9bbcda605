"""The commands on data sets."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

data_commands = typer.Typer(
    help="Data sets: what is known and where it was looked for; fetch one; look at a partition.",
    invoke_without_command=True,
)
DataDir = Annotated[Path | None, typer.Option(help="Where data sets lie. [default: $SORDINO_DATA]")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


@data_commands.callback()
def known(context: typer.Context, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the known data sets: which are present, and where they were looked for."""
    if context.invoked_subcommand is not None:
        return
    from sordino.data import catalogue

    entries = catalogue(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], default=str))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", "records", "classes", "shape", "present")
    for entry in entries:
        shape = "x".join(str(size) for size in entry.shape)
        where = "built in" if entry.name == "digits" else str(entry.found_at)
        present = where if entry.present else "–"
        table.add_row(entry.name, entry.title, f"{entry.records:,}", str(entry.classes), shape, present)
    console = Console(markup=False)
    console.print(table)
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
def show(
    name: Annotated[str, typer.Argument(help="A known data set, or a folder of own files.")],
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet:0.5, shards:2, labels:20%, natural")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    label: Annotated[str | None, typer.Option(help="The label column of own tabular data.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the label distribution into this file.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Deal a data set to clients and tell what each would hold."""
    from sordino.data import draw, summary
    from sordino.experiment.config import Experiment
    from sordino.experiment.prepare import deal

    keys = {"data": name, "partition": partition, "clients": clients, "seed": seed}
    dealt = deal(Experiment.make(keys | {"label": label, "data_dir": data_dir}))
    found = summary(dealt)
    if picture is not None:
        draw(dealt, picture)
    if as_json:
        typer.echo(json.dumps(asdict(found), default=str))
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
    if picture is not None:
        console.print(f"Label distribution: {picture}", highlight=False)
