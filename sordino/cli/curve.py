"""Commands on PAC-DP's curves: which clipping threshold is best at which budget."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import DataDir, Delta, Json, Partition, WorkerCount
from sordino.cli.run import progress_display
from sordino.errors import UserError
from sordino.experiment.defaults import DEFAULT_STORE

curve_commands = typer.Typer(
    help="Curves from budgets to clipping thresholds, for PAC-DP.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@curve_commands.command()
def fit(
    out: Annotated[Path, typer.Argument(help="Where the curve goes (JSON); a picture is put beside it.")],
    data: Annotated[str, typer.Option(help="The public proxy data: a known data set or a folder.")] = "digits",
    data_dir: DataDir = None,
    partition: Partition = None,
    epsilons: Annotated[str, typer.Option(help="Budgets to try.")] = "0.5,1,2,4,8",
    clips: Annotated[str, typer.Option(help="Thresholds to try.")] = "0.1,0.3,1,3,10",
    clients: Annotated[int, typer.Option(help="Clients of the simulation.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds of the simulation.")] = 10,
    seeds: Annotated[int, typer.Option(help="Simulations for each point of the grid.")] = 1,
    delta: Delta = None,
    model: Annotated[str | None, typer.Option(help="The network.")] = None,
    records: Annotated[int | None, typer.Option(help="Use at most so many proxy records.")] = None,
    kind: Annotated[str | None, typer.Option(help="quadratic, power or piecewise. [default: the best]")] = None,
    monotone: Annotated[bool, typer.Option(help="Make the threshold never fall as the budget grows.")] = False,
    set: Annotated[list[str] | None, typer.Option("--set", help="Hyper-parameters, e.g. rate=0.1.")] = None,
    workers: WorkerCount = None,
    store: Annotated[Path, typer.Option(help="The folder for the simulations.")] = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Simulate on public data which threshold is best at each budget, and fit a curve to the answers.

    Simulations that the store already has are taken from there; stopped ones are resumed.
    """
    from sordino.experiment.config import settings_of
    from sordino.parts.curves import draw, save
    from sordino.report.figures import check_picture
    from sordino.study.curve_fitting import fit_curve

    if out.is_dir():
        raise UserError(f"{out} is a folder: name the file that the curve goes to, for example {out / 'curve.json'}.")
    picture = out.with_suffix(".png")
    check_picture(picture)
    keys: dict[str, Any] = {"data": data, "data_dir": data_dir, "records": records, "partition": partition}
    keys |= {"clients": clients, "rounds": rounds, "delta": delta, "model": model, "workers": workers, "store": store}
    keys["set"] = settings_of(set or [])
    budgets, thresholds = parse_numbers(epsilons), parse_numbers(clips)
    simulations = len(budgets) * len(thresholds) * seeds
    with progress_display(as_json) as display:
        curve, points, grid = fit_curve(
            keys,
            budgets,
            thresholds,
            seeds,
            kind,
            monotone,
            tell=display.say,
            watch=display.run(f"{simulations} simulations", simulations * rounds),
        )
    save(curve, out)
    draw(curve, points, picture)
    if as_json:
        typer.echo(json.dumps({"curve": asdict(curve), "points": points, "grid": grid, "picture": str(picture)}))
        return
    used = len(curve.provenance["points"])
    left = f", {len(points) - used} left out as outliers" if len(points) > used else ""
    fitted = "" if curve.determination is None else f"R^2 = {curve.determination:.4f} "
    typer.echo(
        f"{curve.kind} curve on epsilon {curve.low:g} to {curve.high:g}, {fitted}on {used} points{left}, in {out}; "
        f"picture in {picture}"
    )


@curve_commands.command()
def show(
    curve: Annotated[str, typer.Argument(help="A curve's file, or a published one: mnist, cifar10.")],
    as_json: Json = False,
) -> None:
    """Print the thresholds of a curve at several budgets."""
    import numpy as np

    from sordino.parts.curves import curve_called

    found = curve_called(curve)
    values: dict[float, float | None] = {}
    for epsilon in np.geomspace(found.low, found.high, 9):
        try:
            values[float(round(epsilon, 4))] = found(float(epsilon))
        except UserError as error:
            values[float(round(epsilon, 4))] = None
            typer.echo(f"Note: {error}", err=True)
    if as_json:
        typer.echo(json.dumps({"curve": asdict(found), "values": values}))
        return
    from rich.console import Console
    from rich.table import Table

    fitted = "" if found.determination is None else f", R^2 = {found.determination:.4f}"
    table = Table(f"{found.kind} curve{fitted}", "threshold C")
    for epsilon, value in values.items():
        table.add_row(f"epsilon {epsilon:g}", "refused" if value is None else f"{value:.3f}")
    Console(markup=False).print(table)


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas, all above zero."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{text!r} is not a list of numbers separated by commas.") from error
    if not all(0 < number < math.inf for number in found):
        raise UserError(f"{text!r}: every number must be above 0 and finite.")
    return found
