"""Commands that report on runs: `ledger` (what left, and its noise), `statement` (for an officer), `report` (HTML)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import Json, StoreFolder
from sordino.cli.trained import Run
from sordino.experiment.defaults import DEFAULT_STORE


def ledger(
    run: Run,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain, and that the result follows from the rows.")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """List what left the clients of a run: each release, who sent it, its bound and its noise."""
    import csv
    import sys

    from sordino.errors import UserError
    from sordino.store.ledger_rows import COLUMNS, Account
    from sordino.store.store import Store

    if as_csv and (as_json or verify):
        raise UserError(f"Give either --csv or {'--json' if as_json else '--verify'}, not both.")
    found = Account.of(Store(store, must_exist=True), run)
    if verify:
        _verify(found, as_json)
        return
    if as_json:
        typer.echo(json.dumps({"run": run, **found.protects(), "head": found.head, "rows": found.documents()}))
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.documents())
        return
    from rich.console import Console

    from sordino.report.terminal.details import ledger_table

    console = Console(markup=False)
    console.print(ledger_table(found))
    console.print(f"{len(found.ledger.rows)} rows; head {found.head}", style="dim", highlight=False)
    console.print(
        "--csv and --json print all columns; --verify checks that the ledger is unbroken.", style="dim", highlight=False
    )


def _verify(found: Any, as_json: bool) -> None:
    """Print whether a ledger, which was found unbroken when it was read, agrees with the run's result."""
    from sordino.errors import UserError, refuse

    wrong = found.disagreements()
    if as_json:
        told = {"run": found.row.run, "whole": True, "rows": len(found.ledger.rows), "head": found.head}
        typer.echo(json.dumps({**told, **found.protects(), "epsilon": found.epsilon(), "disagreements": wrong}))
        if wrong:
            raise typer.Exit(2)
        return
    refuse(f"the ledger of {found.row.run}", wrong)
    if not found.row.has_result:
        raise UserError(
            f"The ledger of {found.row.run!r} is whole ({len(found.ledger.rows)} rows), but the run is not finished: "
            "it has no result yet that could be compared."
        )
    typer.echo(f"{len(found.ledger.rows)} rows, an unbroken chain; the epsilons of the result follow from them.")
    typer.echo(f"head {found.head}")


def statement(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where it goes: .md or .html.")] = Path(
        "statement.html"
    ),
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write one page for a data-protection officer: what was trained, what left, who could see it, what it means.

    For a PDF, open the HTML file in a browser and print it into a file.
    """
    from sordino.errors import UserError, writing
    from sordino.report.statement import statement_of
    from sordino.report.statement_pages import FORMATS
    from sordino.store.store import Store
    from sordino.util.files import write_whole

    kind = output.suffix.lower()
    if kind == ".pdf":
        instead = output.with_suffix(".html")
        raise UserError(f"A PDF is made by a browser: write {instead}, open it, and print it into a file.")
    if kind not in FORMATS:
        raise UserError(f"A statement is written as .md or .html, not as {kind or 'a file without an ending'!r}.")
    found = statement_of(Store(store, must_exist=True), run)
    with writing(output):
        write_whole(output, FORMATS[kind](found))
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"file": str(output), **asdict(found)}))
        return
    typer.echo(f"{output}: one page on {run}")
    if kind == ".html":
        typer.echo("For a PDF, open it in a browser and print it into a file.")


def report(
    what: Annotated[
        list[str],
        typer.Argument(
            help="Runs (`sordino runs`), or a file of `compare --json` or `audit --json`.", metavar="RUN..."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    store: Annotated[
        Path | None,
        typer.Option(help=f"The folder for runs. [default: the comparison's, else {DEFAULT_STORE}]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one HTML file about runs, a comparison or an audit: figures, pictures, ledger and how to repeat it."""
    from sordino.report.html.make import make_report

    written = make_report(*what, output=output, store=store)
    typer.echo(json.dumps({"page": str(written)}) if as_json else f"{written} opens in any browser.")
