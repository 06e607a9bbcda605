"""Commands on a site of a deployment: `site init`, `status`, `report`, `check` and `accept`. None of them connects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import Json, Label
from sordino.errors import UserError, writing

site_commands = typer.Typer(
    rich_markup_mode=None,
    help="A site of a deployment: make one, look at what it has spent, go on after its witness was lost.",
    no_args_is_help=True,
    add_completion=False,
)
SiteFolder = Annotated[Path, typer.Argument(help="The site's folder (`sordino site init`).")]


@site_commands.command(name="init")
def init_site(
    name: Annotated[str, typer.Option(help="Name of the site in the roster.")],
    data: Annotated[Path, typer.Option(help="The site's own records: CSV, Parquet or NPZ.")],
    label: Label = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="What the columns are, as all sites agreed: the records are checked by it, and experiments with other "
            "columns refused. [default: as each experiment says]"
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Character between the cells of a table. [default: as the file looks]")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a table's text. [default: as the file looks]")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Character before the decimals of numbers. [default: as the file looks]")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the new site. [default: its name]")] = None,
    unit: Annotated[str, typer.Option(help="Unit that is protected: client, record or person.")] = "client",
    person: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with codes of persons, for the unit person. [default: none]"),
    ] = None,
    max_epsilon: Annotated[float, typer.Option(help="Largest epsilon of all runs together.")] = 8.0,
    max_delta: Annotated[float, typer.Option(help="Largest delta of that epsilon.")] = 1e-5,
    min_cohort: Annotated[int, typer.Option(help="Smallest number of sites in a sum, this one included.")] = 3,
    colluders: Annotated[int, typer.Option(help="Number of other sites that may collude with the server.")] = 0,
    app: Annotated[
        bool,
        typer.Option("--app", help="A Flower app trains here (sordino.flower.mod): the records are its own business."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a site: its rules, its identity, its ledger. Nothing of its data is sent."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.protocol.roster import fingerprint
    from sordino.deploy.site.site import Site
    from sordino.flower import keys, serving

    serving.check_name(name)
    where = folder or Path(name)
    if not data.exists():
        raise UserError(f"There are no records at {data}: --data names the site's own file.")
    rules: dict[str, Any] = {"unit": unit, "max_epsilon": max_epsilon, "max_delta": max_delta}
    rules |= {"min_cohort": min_cohort, "colluders": colluders, "person": person}
    rules |= {"delimiter": delimiter, "encoding": encoding, "decimal": decimal}
    if app:
        from sordino.deploy.app import METHOD, NETWORK

        rules |= {"methods": (METHOD,), "models": (NETWORK,)}
    identity = Site.create(where, name, data.resolve(), label=label, schema=schema, **rules)
    line = serving.PublicSite(name, identity, keys.make_node_key(where)).line()
    public = where / f"{name}.pub"
    public.write_text(line + "\n")
    if as_json:
        told = {"name": name, "folder": str(where), "public": str(public), "line": line}
        typer.echo(json.dumps(told | {"fingerprint": fingerprint(identity)}))
        return
    typer.echo(f"The site is in {where}: read {where / 'site.toml'}, whose rules it keeps. It must never be copied.")
    for sentence in _what_was_read(where):
        typer.echo(sentence)
    typer.echo(f"Send {public} to the server's operator, and this to all owners, for them to compare:")
    typer.echo(f"{name}  {fingerprint(identity)}")


def _what_was_read(folder: Path) -> list[str]:
    """Sentences for the owner on how a new site's table is read, and by which schema."""
    from sordino.deploy.site.data import read_by, read_records
    from sordino.deploy.site.rules import WRITTEN, read_rules

    policy = read_rules(folder)
    unusual = [f"{key} = {value!r}" for key in WRITTEN if (value := getattr(policy.rules, key)) is not None]
    told = [f"The table is read with {', '.join(unusual)} (site.toml)."] if unusual else []
    if policy.schema is not None:
        records, counted = read_by(policy.schema, read_records(folder, policy.rules), policy.rules)
        told.append(f"{records:,} records fit the schema; experiments with other columns are refused.")
        told += counted
    return told


@site_commands.command()
def status(folder: SiteFolder, as_json: Json = False) -> None:
    """Show what a site has spent, what it took part in, and how well its models do. None of this leaves the site."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.status import status as status_of
    from sordino.flower import keys

    found = status_of(folder, judged=True)
    warnings = keys.warnings_for_site(folder)
    if as_json:
        typer.echo(json.dumps(found | {"warnings": warnings}))
        return
    from rich.console import Console

    from sordino.report.terminal.details import site_report

    console = Console(markup=False)
    console.print(site_report(found), highlight=False)
    for sentence in warnings:
        console.print(sentence, style="yellow", highlight=False)


@site_commands.command(name="report")
def report_site(
    folder: SiteFolder,
    point: Annotated[
        str | None,
        typer.Option(
            "--operating-point",
            metavar="WISH",
            help="Choose from which probability on the class that is looked for is predicted, and store it with the "
            "model: recall=0.9, cost=10:1 (a missed one costs ten false alarms), threshold=0.2, or none.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write it as a page, too: .html, .md or .json. [default: printed only]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a site's models on its own test records, with intervals: AUC, recall, precision, calibration, confusion and
    the worst group. None of this leaves the site."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.judging import judge_site
    from sordino.report.judgement_page import JudgementReport
    from sordino.report.statement_pages import FORMATS
    from sordino.util.files import write_whole

    kind = None if output is None else output.suffix.lower()
    if kind is not None and kind not in FORMATS:
        raise UserError(f"A report is written as .html, .md or .json, not as {kind or 'a file without an ending'}.")
    found = judge_site(folder, point)
    if output is not None and kind is not None:
        with writing(output):
            write_whole(output, FORMATS[kind](JudgementReport(found)))
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    from rich.console import Console

    from sordino.report.terminal.metrics import judgement_report

    Console(markup=False).print(judgement_report(found), highlight=False)


@site_commands.command()
def check(
    experiment: Annotated[Path, typer.Argument(help="The experiment (TOML) that the server's operator will serve.")],
    folder: SiteFolder,
    as_json: Json = False,
) -> None:
    """Check whether a site would take part in an experiment, and what that would cost. Nothing leaves the site."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.check import check_experiment
    from sordino.experiment.config import Experiment

    found = check_experiment(folder, Experiment.read(experiment, {}))
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    elif found.refusal is None:
        from rich.console import Console

        from sordino.report.terminal.details import check_report

        Console(markup=False).print(check_report(found.to_dict()), highlight=False)
    else:
        raise UserError(f"{found.site} would not take part: {found.refusal}")
    if found.refusal is not None:
        raise typer.Exit(2)


@site_commands.command()
def accept(folder: SiteFolder, as_json: Json = False) -> None:
    """Go on with a site whose witness (its ledger's head, kept outside its folder) is lost or newer than the ledger.

    Its budget counts as used up until other sites confirm the ledger; a restored or copied site stays closed.
    """
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.witness import accept as accept_site

    told = accept_site(folder)
    typer.echo(json.dumps({"folder": str(folder), "accepted": told}) if as_json else told)
