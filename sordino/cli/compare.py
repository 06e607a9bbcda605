"""The command that compares methods."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sordino.cli.options import (
    RUN,
    File,
    Json,
    Keys,
    Log,
    OnCluster,
    PartOfNode,
    experiment_from,
    parts,
    taking,
)
from sordino.cli.run import crew_of, getting_ready, progress_display, show_meaning
from sordino.errors import UserError, check_writable, writing
from sordino.experiment.defaults import COMPARED, FEW_SITES, in_store

DOCUMENT = "compare.json"


Methods = Annotated[
    str | None,
    typer.Option(
        help="Separated by commas; feddpa[tau=2,lambda1=0] for ablations. [default: local and dp-fedsgd beside "
        f"dp-fedavg-record for tables at up to {FEW_SITES} sites, else {','.join(COMPARED)}]"
    ),
]
Budgets = Annotated[
    str | None,
    typer.Option(help="The budget, or several separated by commas, as in 1,2,4,8. [default: 8]"),
]
SweepValues = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Values of any key or hyper-parameter to go through, as in clients=20,100; repeatable. Methods that "
        "do not depend on it are run once.",
    ),
]
TuningGrid = Annotated[
    str | None,
    typer.Option(
        metavar="GRID",
        help="Values to choose from first for every method, on seeds that are not reported, as in "
        "'rate=0.01,0.1;clip=0.3,1'. [default: nothing is tuned]",
    ),
]
TuningSeeds = Annotated[int, typer.Option(help="Seeds for tuning.", min=1, max=100, show_default=True)]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs at once; results do not depend on it. [default: one per core where runs are small]"),
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Make the runs of one part of N alone, as on one of several machines; `sordino runs --merge` brings the "
        "stores together, in which the same command without --shard finds all runs. [default: all runs]",
    ),
]
Picture = Annotated[
    Path | None, typer.Option(help="Where the picture goes: .png, .pdf or .svg. [default: STORE/compare.png]")
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE,DEVICE",
        help="Deal the runs to these torch devices, one at a time on each, as in cuda:0,cuda:1. [default: the key "
        "device, which is cpu]",
    ),
]
Judged = Annotated[
    str | None,
    typer.Option(
        metavar="FIGURE",
        help="The figure of the verdict, by which rows are put in order: personal, global, worst-tenth (of the "
        "clients) or AUC. [default: personal, rows in the order asked for]",
    ),
]
Export = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Write methods, runs, rounds and clients as tidy tables (CSV, and Parquet with pyarrow), pictures and "
        "results.bib into this folder.",
    ),
]


@taking(*(key for key in RUN if key not in ("method", "epsilon")))  # of which a comparison has several
def compare(
    keys: Keys,
    experiment: File = None,
    methods: Methods = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.", show_default=True)] = 3,
    epsilon: Budgets = None,
    sweep: SweepValues = None,
    tune: TuningGrid = None,
    tuning_seeds: TuningSeeds = 1,
    jobs: Jobs = None,
    cluster: OnCluster = None,
    per_run: PartOfNode = None,
    shard: ShardOf = None,
    devices: Devices = None,
    judge: Judged = None,
    export: Export = None,
    picture: Picture = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table into this file.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table for LaTeX (booktabs).")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Run several methods with several seeds at equal true epsilon, and put them side by side.

    A verdict is a test: paired differences over seeds, with a confidence interval.
    """
    if latex and markdown:
        raise UserError("Give either --latex or --markdown, not both.")
    if shard:
        _refuse_tables(tune, judge, export, picture, csv, latex, markdown)
    with contextlib.ExitStack() as held:
        crew = held.enter_context(crew_of(cluster, per_run, jobs))
        with getting_ready(as_json):
            from sordino.report.figures import check_picture
            from sordino.report.logs import check_log, log_runs
            from sordino.report.study_files import check_folder
            from sordino.study.compare import compare as compare_methods
            from sordino.study.compare import compare_part
            from sordino.study.sweep import Shard, grid_of, values_of
            from sordino.study.verdict import judge_of

            part = None if shard is None else Shard.read(shard)
            check_log(log)
            judge_of(judge or "personal")
            swept = _sweep(epsilon, sweep or [], values_of)
            budget = None if "epsilon" in swept or epsilon is None else values_of(f"epsilon={epsilon}")[1][0]
            names, chosen = _contenders(methods, experiment, keys | {"epsilon": budget})
            picture = picture or chosen.store / "compare.png"
            drawn = check_picture(picture)
            check_writable(csv)
            check_folder(export)
        with progress_display(as_json) as screen, log_runs(screen, log, chosen.store) as display:
            if not drawn:
                display.say('There is no matplotlib, so no picture will be drawn: pip install "sordino[report]".')
            if part is not None:
                made = compare_part(
                    chosen, names, seeds, part, display, sweep=swept, jobs=jobs, devices=parts(devices), crew=crew
                )
                _show_part(made, chosen, as_json)
                return
            found = compare_methods(
                chosen,
                names,
                seeds,
                display,
                sweep=swept,
                jobs=jobs,
                grid=grid_of(tune) if tune else None,
                tuning_seeds=tuning_seeds,
                judge=judge,
                devices=parts(devices),
                crew=crew,
            )
    document = _write_files(found, chosen, picture if drawn else None, csv)
    if export is not None:
        _export(found, chosen, export)
    if as_json:
        typer.echo(document)
    elif latex or markdown:
        _show_table(found, latex)
    else:
        _show(found, chosen, picture if drawn else None)


def _contenders(methods: str | None, file: Path | None, keys: Keys) -> tuple[list[str], Any]:
    """Names of the methods that are compared, with those that the verdict needs, and the experiment that they share."""
    from sordino.experiment.prepare import choose_contenders, complete_contenders
    from sordino.methods import names as all_methods
    from sordino.study.sweep import contender, split_methods

    if methods is None:
        names, chosen = choose_contenders(experiment_from(file, keys, all_methods()))
        chosen.check_settings([contender(name)[0] for name in names])
        return names, chosen
    names = split_methods(methods)
    chosen = experiment_from(file, keys, [contender(name)[0] for name in names])
    return complete_contenders(chosen, names), chosen


def _refuse_tables(*given: object) -> None:
    """Refuse options of tables beside a part of a comparison, of which there is none."""
    if any(given):
        raise UserError(
            "--shard makes runs, and no table: leave out --tune, --judge, --export, --picture, --csv, --latex and "
            "--markdown. Methods are tuned before, and the table comes from the merged stores."
        )


def _show_part(made: Any, chosen: Any, as_json: bool) -> None:
    """Print which runs of a comparison were made, and how they come together."""
    if as_json:
        typer.echo(json.dumps({**asdict(made), "store": str(chosen.store.resolve())}))
        return
    typer.echo(f"Part {made.shard}: {len(made.runs)} of {made.cells} runs are in {chosen.store}.")
    typer.echo(
        "When all parts are done: sordino runs --merge STORE... --store INTO, then this command without --shard."
    )


def _write_files(found: Any, chosen: Any, picture: Path | None, csv: Path | None) -> str:
    """Write a comparison into its files; returns the JSON document."""
    from sordino.util.files import write_whole

    page = chosen.store / DOCUMENT
    places = {"picture": None if picture is None else str(picture), "store": str(chosen.store.resolve())}
    document = json.dumps(found.document() | places)
    with writing(page):
        write_whole(page, document)
    if csv is not None:
        from sordino.report.exports import write_csv

        write_csv(found.rows, found.sweep, csv)
    if picture is not None:
        _draw(found, picture, chosen)
    return document


def _export(found: Any, chosen: Any, folder: Path) -> None:
    """Write a comparison into a folder, and say so on standard error."""
    from sordino.report.study_files import export_study
    from sordino.store.store import Store

    with contextlib.closing(Store(chosen.store, must_exist=True)) as store:
        written = export_study(found, store, folder)
    typer.echo(f"Exported {len(written)} files to {folder}", err=True)


def _show_table(found: Any, latex: bool) -> None:
    """Print a comparison's table for a paper or a text, and its verdict on standard error."""
    from sordino.report import exports

    typer.echo((exports.latex if latex else exports.markdown)(found.rows, found.sweep))
    seeds = found.rows[0].seeds
    told = f"Accuracy in %, mean and standard deviation over {seeds} seed{'s' if seeds > 1 else ''}."
    for sentence in (told, *found.verdict):
        typer.echo(sentence, err=True)


def _sweep(epsilon: str | None, sweep: list[str], values_of: Any) -> dict[str, list[Any]]:
    """Keys of the sweep with their values; several budgets are one of them."""
    texts = [f"epsilon={epsilon}"] if epsilon is not None and "," in epsilon else []
    found: dict[str, list[Any]] = {}
    for text in [*texts, *sweep]:
        key, values = values_of(text)
        if key in found:
            raise UserError(f"{key!r} is swept twice: name its values once.")
        found[key] = values
    return found


def _draw(found: Any, picture: Path, chosen: Any) -> None:
    from sordino.report.figures import comparison_picture
    from sordino.report.terminal.results import epsilon_text

    seeds = found.rows[0].seeds
    title = f"{chosen.data}, {chosen.rounds} rounds, mean and range over {seeds} seed{'s' if seeds > 1 else ''}"
    private = [row.epsilon[chosen.protect_from] for row in found.rows if row.epsilon[chosen.protect_from] != 0]
    if private and not found.sweep:
        largest = None if None in private else max(private)
        title += f", epsilon at most {epsilon_text(largest)} for the {chosen.protect_from}"
    comparison_picture(found.rows, found.sweep, picture, title)


def _show(found: Any, chosen: Any, picture: Path | None) -> None:
    """Print a comparison for people, and where its picture and page are."""
    from rich.console import Console

    from sordino.report.terminal.results import comparison_table
    from sordino.report.wording import gains_of
    from sordino.study.tuning import sentences

    console = Console(markup=False)
    console.print(comparison_table(found.rows, found.sweep))
    show_meaning(found.rows, console)
    cost = (*sentences(found.tuned, chosen.protect_from), *found.together(chosen.protect_from))
    for sentence in (*found.verdict, *gains_of(found.rows), *cost):
        console.print(sentence, highlight=False)
    if picture is not None:
        typer.echo(f"Picture: {picture}")
    page = quote(str(chosen.store / DOCUMENT))
    typer.echo(f"Page: sordino report {page} -o report.html{in_store(chosen.store)}")
