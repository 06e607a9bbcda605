"""Commands that report on runs: `ledger` (what left, and its noise), `statement` (for an officer), `report` (HTML)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import Json, StoreFolder
from sordino.cli.trained import RunOrSite, is_site
from sordino.experiment.defaults import DEFAULT_STORE

if TYPE_CHECKING:
    from sordino.report.statement_pages import Told


def ledger(
    run: RunOrSite,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain, and that the result follows from the rows.")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """List what left the clients of a run, or a site over all its runs: each release, its bound and its noise."""
    import csv
    import sys

    from sordino.errors import UserError
    from sordino.store.ledger_rows import COLUMNS, Account
    from sordino.store.store import Store

    if as_csv and (as_json or verify):
        raise UserError(f"Give either --csv or {'--json' if as_json else '--verify'}, not both.")
    if is_site(run):
        _site_ledger(Path(run), as_csv, verify, as_json)
        return
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


def _site_ledger(folder: Path, as_csv: bool, verify: bool, as_json: bool) -> None:
    """Print the ledger of a site, or whether it is whole and keeps to the site's rules."""
    import csv
    import sys

    from sordino.errors import refuse
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.verify import COLUMNS, ledger_documents, verify_site

    if verify:
        found = verify_site(folder)
        if as_json:
            typer.echo(json.dumps(found.to_dict()))
            if found.disagreements:
                raise typer.Exit(2)
            return
        refuse(f"the ledger of the site {found.site}", found.disagreements)
        typer.echo(f"{found.rows} rows, an unbroken chain that ends as the site's witness says.")
        typer.echo(
            "Every release belongs to a run, costs no more than was reserved, and all of them keep to the rules."
        )
        typer.echo(f"head {found.head}")
        return
    document = ledger_documents(folder)
    if as_json:
        typer.echo(json.dumps(document))
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(document["rows"])
        return
    from rich.console import Console

    from sordino.report.terminal.details import site_ledger_table

    console = Console(markup=False)
    console.print(site_ledger_table(document))
    console.print(f"{len(document['rows'])} rows; head {document['head']}", style="dim", highlight=False)
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
    run: RunOrSite,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where it goes: .html, .md or .json. [default: statement.html]"),
    ] = None,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry",
            help="Write just the fields of the DP Deployments Registry: .yaml or .json. [default: registry.yaml]",
        ),
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write a page for a data-protection officer on a run, or on a site over all its runs.

    It says what was trained, what left, who could see it and what it means, with an annex for an impact assessment. For
    a PDF, open the HTML file in a browser and print it into a file. --json prints all of it for programs.
    """
    from sordino.errors import UserError, writing
    from sordino.report.registry import REGISTRY_FORMATS
    from sordino.report.statement_pages import FORMATS
    from sordino.util.files import write_whole

    output = output or Path("registry.yaml" if registry else "statement.html")
    kind = output.suffix.lower()
    if kind == ".pdf":
        instead = output.with_suffix(".html")
        raise UserError(f"A PDF is made by a browser: write {instead}, open it, and print it into a file.")
    if registry and kind not in REGISTRY_FORMATS:
        raise UserError(f"The registry's fields are written as .yaml or .json, not as {_ending(kind)}.")
    if not registry and kind not in FORMATS:
        raise UserError(f"A statement is written as .md or .html, or as .json for programs, not as {_ending(kind)}.")
    found = _told(run, store)
    document = found.document()
    with writing(output):
        write_whole(output, REGISTRY_FORMATS[kind](document["registry"]) if registry else FORMATS[kind](found))
    if as_json:
        typer.echo(json.dumps(document["registry"] if registry else {"file": str(output), **document}))
        return
    if registry:
        typer.echo(f"{output}: fields of the Deployments Registry on {run}")
        typer.echo(f"Only you can fill in: {', '.join(document['blank'])}")
        return
    typer.echo(f"{output}: statement on {run}")
    if kind == ".html":
        typer.echo("For a PDF, open it in a browser and print it into a file.")


def _ending(kind: str) -> str:
    return repr(kind or "a file without an ending")


def _told(run: str, store: Path) -> Told:
    """Statement on a run of a store, or on the site in a folder."""
    if is_site(run):
        from sordino.flower import check_installed

        check_installed()
        from sordino.report.site_statement import site_statement_of

        return site_statement_of(Path(run))
    from sordino.report.statement import statement_of
    from sordino.store.store import Store

    return statement_of(Store(store, must_exist=True), run)


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
