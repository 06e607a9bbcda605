"""The command that makes a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import Json
from sordino.experiment.defaults import DEFAULT_STORE


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
    from sordino.report.page.make import make_report

    written = make_report(*what, output=output, store=store)
    typer.echo(json.dumps({"page": str(written)}) if as_json else f"{written} opens in any browser.")
