"""`sordino reproduce`: the command that repeats the papers' tables and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import STORE, DataDir, Json, OnCluster, PartOfNode
from sordino.cli.run import crew_of, progress_display
from sordino.errors import UserError, writing
from sordino.experiment.defaults import DEFAULT_STORE

PaperName = Annotated[str | None, typer.Argument(help="feddpa, fedglp-adp, acdp-pfsd, adadp-cfl, pac-dp, or all.")]
ScaleName = Annotated[
    str,
    typer.Option(
        metavar="SCALE",
        help="quick (minutes, on the built-in digits; too small to judge by), small (half an hour a table on two "
        "cores), medium (main tables: where the paper's mechanism can show, tuned, some hours on two cores) or paper "
        "(as published; made for a GPU).",
    ),
]
TuningGrid = Annotated[
    str | None,
    typer.Option(
        metavar="GRID",
        help="Values to choose from first for every method, on three seeds that are not reported, as in "
        "'rate=0.01,0.1;clip=0.3,1'; `paper` takes the paper's own grid. [default: nothing is tuned]",
    ),
]
Stores = Annotated[
    list[Path] | None,
    typer.Option("--store", help=f"{STORE} With --index it may be repeated: at equal scale the last one counts."),
]
IndexFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="With --index or --headlines: file for the page; if it has marks, only the part between them. [default: "
        "the screen]",
    ),
]
KeepFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="With --index or --headlines: copy the page's documents there; --store FOLDER then reads them without the "
        "runs.",
    ),
]
ShowList = Annotated[
    bool, typer.Option("--list", help="List tables and figures, of all papers or of one, and run nothing.")
]
ShowIndex = Annotated[
    bool, typer.Option("--index", help="Print the page of all stored tables (or headlines), and run nothing.")
]
ShowPlan = Annotated[
    bool, typer.Option("--plan", help="Tell how many runs the table takes, and how long, and run nothing.")
]
ShowHeadlines = Annotated[
    bool,
    typer.Option(
        "--headlines",
        help="Measure what Sordino reaches, truly, at the epsilon of each main number that the papers print; rows "
        "whose data are not here are left out.",
    ),
]


def reproduce(
    paper: PaperName = None,
    table: Annotated[str | None, typer.Argument(help="As in table-3 or figure-2. [default: all of the paper]")] = None,
    scale: ScaleName = "quick",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds. [default: 3]", min=1)] = None,
    tune: TuningGrid = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at once. [default: as sizes and cores suggest]")] = None,
    cluster: OnCluster = None,
    per_run: PartOfNode = None,
    data_dir: DataDir = None,
    store: Stores = None,
    output: IndexFile = None,
    keep: KeepFolder = None,
    show_list: ShowList = False,
    index: ShowIndex = False,
    headlines: ShowHeadlines = False,
    plan: ShowPlan = False,
    as_json: Json = False,
) -> None:
    """Repeat a paper's tables and figures: as printed, as published with the true epsilon, and at equal true epsilon.

    Runs that the store already has are taken from there; stopped runs are resumed. Pages go to STORE/papers.
    """
    stores = store or [DEFAULT_STORE]
    if show_list:
        _list(paper, as_json)
        return
    if headlines:
        if table is not None or tune is not None:
            raise UserError("--headlines takes at most a paper: it has one table, and tunes nothing.")
        _headlines(paper, seeds, jobs, data_dir, stores, output, keep, index, as_json)
        return
    if index:
        if paper is not None:
            raise UserError("--index takes no paper: it is the page of all of them.")
        _index(stores, output, keep, as_json)
        return
    if output is not None or keep is not None:
        raise UserError("--output and --keep are for --index: the pages of tables go to STORE/papers.")
    if len(stores) > 1:
        raise UserError("Several stores are for --index: name the one where runs go.")
    if paper is None:
        raise UserError(
            "Name a paper, as in `sordino reproduce feddpa table-3`; `sordino reproduce --list` shows them."
        )
    with crew_of(cluster, per_run, jobs) as crew:
        options = replace(_options(scale, seeds, tune, jobs, data_dir, stores[0]), crew=crew)
        _make(paper, table, options, plan, as_json)


def _headlines(
    paper: str | None,
    seeds: int | None,
    jobs: int | None,
    data_dir: Path | None,
    stores: list[Path],
    output: Path | None,
    keep: Path | None,
    index: bool,
    as_json: bool,
) -> None:
    from sordino.experiment.config import check_seeds
    from sordino.papers import headlines
    from sordino.papers.description import find
    from sordino.util.files import read_text, write_whole

    if paper is not None:
        find(paper)
    if seeds is not None:
        check_seeds(seeds)
    if len(stores) > 1 and not index:
        raise UserError("Several stores are for --index: name the one where runs go.")
    options = headlines.HeadlineOptions(stores[0], seeds or headlines.SEEDS, data_dir, jobs, paper)
    if index:
        rows = headlines.stored_rows(stores, options)
    else:
        with progress_display(as_json) as display:
            rows = headlines.measure(options, display)
        headlines.keep(rows, stores[0])
    if keep is not None:
        headlines.keep(rows, keep)
    if output is not None:
        with writing(output):
            written = read_text(output) if output.is_file() else ""
            write_whole(output, headlines.insert(rows, written))
    if as_json:
        typer.echo(json.dumps({"rows": [row.to_dict() for row in rows]}))
    elif output is None and index:
        typer.echo(headlines.page(rows))
    elif output is None:
        _show_headlines(rows)
    else:
        typer.echo(f"Headlines: {output}")


def _show_headlines(rows: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordino.papers.headlines import HEAD, cells_of, count_words

    console = Console(markup=False)
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*cells_of(row))
    console.print(table)
    console.print(count_words(rows), highlight=False)


def _options(
    scale: str, seeds: int | None, tune: str | None, jobs: int | None, data_dir: Path | None, store: Path
) -> Any:
    from sordino.experiment.config import check_seeds
    from sordino.papers.description import scale_of
    from sordino.papers.table_runs import ReproduceOptions

    if seeds is not None:
        check_seeds(seeds)
    if tune is not None and not tune.strip():
        raise UserError(
            "--tune is empty: write a grid, as in 'rate=0.01,0.1;clip=0.3,1', or `paper` for the paper's own."
        )
    return ReproduceOptions(scale_of(scale), seeds, store, data_dir, jobs, tune or "")


def _make(name: str, table: str | None, options: Any, plan: bool, as_json: bool) -> None:
    from sordino.papers.description import find, papers
    from sordino.papers.table_runs import Study
    from sordino.report.figures import check_picture

    if name == "all" and table is not None:
        raise UserError("`all` takes no table: name one paper.")
    chosen = [find(one) for one in papers()] if name == "all" else [find(name, table)]
    if options.scale == "medium" and table is None:  # only these have a decisive experiment
        chosen = [(paper, [one for one in tables if one.medium is not None]) for paper, tables in chosen]
    studies = [Study(paper, one, options) for paper, tables in chosen for one in tables]
    if plan:
        _tell_plan(studies, as_json)
        return
    drawn = check_picture(options.store / "papers" / "picture.png")
    absent = {id(study): study.missing_data() for study in studies}
    if len(studies) > 1 and any(not lacking for lacking in absent.values()):
        for study in studies:
            if absent[id(study)] and not as_json:
                lacking = ", ".join(absent[id(study)])
                typer.echo(
                    f"{study.paper.name} {study.table.name} is left out: its data ({lacking}) are missing.", err=True
                )
        studies = [study for study in studies if not absent[id(study)]]
    documents = []
    for study in studies:
        document = _one(study, drawn, as_json, len(studies) > 1)
        documents.append(document)
    if as_json:
        typer.echo(json.dumps(documents[0] if table is not None else documents))


def _tell_plan(studies: list[Any], as_json: bool) -> None:
    if as_json:
        told = [{"paper": one.paper.name, "table": one.table.name, **one.estimate().to_dict()} for one in studies]
        typer.echo(json.dumps(told))
        return
    for study in studies:
        typer.echo(f"{study.paper.name} {study.table.name}: {study.estimate().words()}")


def _one(study: Any, drawn: bool, as_json: bool, several: bool) -> dict[str, Any]:
    from sordino.papers.figures import draw
    from sordino.papers.judgement import ClaimJudgement
    from sordino.papers.pages import write

    if several and not as_json:
        typer.echo(f"{study.paper.name} {study.table.name}: {study.table.title}")
    if study.options.scale == "medium" and not as_json and not study.missing_data():
        typer.echo(f"{study.paper.name} {study.table.name}: {study.estimate().words()}", err=True)
    with progress_display(as_json) as display:
        done = study.make(display)
    document = ClaimJudgement(done).document()
    page = write(document, study.options.store)
    if drawn:
        draw(done, page.with_suffix(".png"))
    if not as_json:
        _show(document, page, drawn)
    return document


def _show(document: dict[str, Any], page: Path, drawn: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordino.papers.claims import rows_of
    from sordino.papers.pages import epsilon_text, interval, measured_text, printed_text

    console = Console(markup=False)
    rows = rows_of(document)
    for column in dict.fromkeys(row.column for row in rows):
        table = Table("", "printed", "as published", "true ε", "sound", "95 % interval", "ε", title=column)
        for row in rows:
            if row.column == column:
                left_out = bool(row.not_as_published)
                table.add_row(
                    f"{row.row} *" if row.ours else row.row,
                    printed_text(row),
                    "-" if left_out else measured_text(row, "paper"),
                    "-" if left_out else epsilon_text(row.paper_epsilon),
                    measured_text(row, "sound"),
                    interval(row.sound_interval, row.measure),
                    epsilon_text(row.epsilon),
                )
        console.print(table)
    console.print("* proposed by the paper", style="dim", highlight=False)
    for sentence in (*document["tuning"], document["verdict"]):
        console.print(sentence, highlight=False)
    console.print(f"Page: {page}{' (and .png, .csv, .tex, .json)' if drawn else ''}", style="dim", highlight=False)


def _list(only: str | None, as_json: bool) -> None:
    from sordino.papers.description import find, papers

    known = papers() if only is None else {only: find(only)[0]}
    if as_json:
        listed = [
            {
                "paper": name,
                "title": paper.title,
                "citation": paper.citation,
                "main": paper.main,
                "tables": [
                    {
                        "table": table.name,
                        "title": table.title,
                        "claim": table.claim,
                        "rows": len(table.rows),
                        "columns": len(table.columns),
                    }
                    for table in paper.tables.values()
                ],
            }
            for name, paper in known.items()
        ]
        typer.echo(json.dumps(listed))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("paper", "table", "what it shows", "rows", "columns")
    for name, paper in known.items():
        for one in paper.tables.values():
            table.add_row(name, one.name, one.title, str(len(one.rows)), str(len(one.columns)))
    Console(markup=False).print(table)


def _index(stores: list[Path], output: Path | None, keep: Path | None, as_json: bool) -> None:
    from sordino.papers import index as paper_index
    from sordino.papers.description import papers
    from sordino.util.files import read_text, write_whole

    found = paper_index.documents(stores)
    if not found:
        named = ", ".join(map(str, stores))
        raise UserError(f"The store {named} has no reproduced table yet: `sordino reproduce feddpa table-3` makes one.")
    if keep is not None:
        paper_index.keep(found, keep)
    if as_json:
        typer.echo(json.dumps(list(found.values())))
        return
    text = paper_index.index(papers(), found)
    if output is None:
        typer.echo(text)
        return
    with writing(output):
        written = read_text(output) if output.is_file() else ""
        write_whole(output, paper_index.insert_index(text, written))
    typer.echo(f"Index: {output}")
