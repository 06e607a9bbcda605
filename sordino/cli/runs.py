"""Commands `runs` and `rm`: list a store's runs, merge stores, import the privacy spending of another store, delete
runs' models and curves."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sordino.cli.options import Json, StoreFolder
from sordino.errors import UserError, unknown
from sordino.experiment.defaults import DEFAULT_STORE, RunState

if TYPE_CHECKING:
    from sordino.store.store import RunRow

STATES = get_args(RunState)
FILTERS = "--method, --data, --seed, --state, --last"
"""Options of `runs` that choose among runs."""


def runs(
    stores: Annotated[
        list[Path] | None, typer.Argument(metavar="[STORE]...", help="With --merge: the stores to merge.")
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    method: Annotated[str | None, typer.Option(help="Only runs of this method. [default: all]")] = None,
    data: Annotated[str | None, typer.Option(help="Only runs on these data. [default: all]")] = None,
    seed: Annotated[int | None, typer.Option(help="Only runs with this seed. [default: all]")] = None,
    state: Annotated[
        str | None,
        typer.Option(help=f"Only those: {', '.join(STATES[:-1])} or {STATES[-1]}. [default: all but removed]"),
    ] = None,
    last: Annotated[int | None, typer.Option(help="Only this number of the newest. [default: all]", min=1)] = None,
    import_from: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="OLD_STORE",
            help="Take over what the runs of another store, or of one of an earlier version, have cost people; it then "
            "counts here. [default: list the runs]",
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Bring all runs of other stores into that of --store: their models, curves and what they have cost. "
            "A run that is in several stays one. [default: list the runs]",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs of a store, newest first: data, seed, budget, epsilon, date and accuracy of each."""
    from sordino.report.run_list import charges, describe_run
    from sordino.store.store import runs_in

    if merge:
        if import_from is not None or any(given is not None for given in (method, data, seed, state, last)):
            raise UserError(f"--merge takes all runs of the stores: leave out --import and filters ({FILTERS}).")
        if not stores:
            raise UserError("Name the stores to merge: sordino runs --merge STORE... --store INTO.")
        _merge(stores, store, as_json)
        return
    if stores:
        raise UserError("Names of stores are for --merge: `sordino runs --store FOLDER` lists the runs of one.")
    if import_from is not None:
        if any(given is not None for given in (method, data, seed, state, last)):
            raise UserError(f"--import takes the spending of all runs of a store: leave out filters ({FILTERS}).")
        _import(import_from, store, as_json)
        return
    if state is not None and state not in STATES:
        raise unknown("state", state, STATES)
    there = runs_in(store)
    found = _choose(there, state, {"method": method, "data": data, "seed": seed})[:last]
    charged = charges(found, store)
    if as_json:
        typer.echo(json.dumps([describe_run(row, charged) for row in found]))
        return
    from rich.console import Console

    console = Console(markup=False)
    if not found:
        console.print("No such runs." if there else f"No runs in {store} yet: `sordino run` makes one.")
        return
    console.print(_table(found, charged), highlight=False)
    for sentence in dict.fromkeys(sentence for row in found for sentence in row.unit.caveats()):
        console.print(f"Where records are protected: {sentence}", style="dim", highlight=False)


def _choose(rows: Sequence[RunRow], state: str | None, wanted: Mapping[str, Any]) -> list[RunRow]:
    """Runs in a state, by default in any but removed, that have the values of the keys in `wanted`; None is any."""
    found = [row for row in rows if row.state == state or (state is None and row.state != "removed")]
    return [
        row
        for row in found
        if all(value is None or row.configuration.get(key) == value for key, value in wanted.items())
    ]


def _merge(stores: list[Path], into: Path, as_json: bool) -> None:
    """Merge stores into one, and print what was brought."""
    from sordino.store.merging import merge as merge_stores

    found = merge_stores(stores, into)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for one in found["merged"]:
        typer.echo(one["run"] if one["run"] == one["name"] else f"{one['run']} -> {one['name']}")
    number = len(found["merged"])
    typer.echo(f"Merged {number} run{'' if number == 1 else 's'} into {found['store']}. Each counts there once.")
    if found["spending"]:
        names = ", ".join(f"{one['run']} -> {one['name']}" for one in found["spending"])
        typer.echo(f"Only their spending was imported, because the store has other releases of the same runs: {names}.")
    if found["known"]:
        typer.echo(f"{', '.join(found['known'])}: there before.")


def _import(old: Path, new: Path, as_json: bool) -> None:
    """Import the spending of a store's runs, and print what was imported."""
    from sordino.store.importing import import_spending

    found = import_spending(old, new)
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo("\n".join(_import_sentences(found)))


def _import_sentences(found: Any) -> list[str]:
    """Sentences on an import."""
    told = [
        f"{one['run']} -> {one['name']}: for one {one['unit']}{', as planned' if one['as_planned'] else ''}"
        for one in found["imported"]
    ]
    told += [
        f"{one['run']} was resumed in both stores, and did not release the same as {' and '.join(one['beside'])} here: "
        "both count."
        for one in found["imported"]
        if one["beside"]
    ]
    number = len(found["imported"])
    told.append(
        f"Imported the spending of {number} run{'s' if number != 1 else ''} of {found['from']} into {found['store']}. "
        "It counts there in sums over runs and against budget_over_runs."
    )
    rest = {"known": "imported before", "without_cost": "spent nothing"}
    told += [f"{', '.join(found[key])}: {words}." for key, words in rest.items() if found[key]]
    return told


def _of_budget(budget: float | None) -> str:
    """Requested epsilon, to stand behind the one that was reached."""
    return "" if budget is None else f" of {budget:g}"


def _table(found: list[Any], charged: dict[str, float]) -> Any:
    from sordino.report.run_list import auc_of, describe_run
    from sordino.report.terminal import terminal_text
    from sordino.report.terminal.columns import Column, Fitting
    from sordino.report.terminal.results import epsilon_text
    from sordino.report.wording import bound_words, percent

    binary = any(auc_of(row) is not None for row in found)
    columns = (
        *(Column("run", left=True), Column("accuracy"), *([Column("AUC", 1)] if binary else [])),
        *(Column("epsilon", 1), Column("state", left=True)),
        *(Column("seed", 3), Column("date", 2, left=True), Column("data", 4, left=True)),
        Column("method", 5, left=True),
    )
    rows = []
    for row in found:
        told = describe_run(row, charged)
        done = told["accuracy"] is not None
        so_far = "–" if row.run not in charged else f"≥{bound_words(charged[row.run])} so far"
        told_once = "epsilon" in (row.summary or {})
        cost = (epsilon_text(told["epsilon"]) if told_once else terminal_text(so_far)) + _of_budget(told["budget"])
        if not told_once and told["epsilon"] is not None:
            cost = f"{epsilon_text(told['epsilon'])} as planned"
        settings = [f"{key}={value}" for key, value in (told["set"] or {}).items()]
        settings += [f"personal={told['personal']}"] if told["personal"] not in (None, "own") else []
        rows.append(
            (
                told["run"],
                percent(told["accuracy"]) if done else "",
                *([] if not binary else [""] if told["auc"] is None else [f"{told['auc']:.3f}"]),
                cost,
                row.state if row.summary is not None else f"{row.state} {row.rounds_done}/{row.rounds}",
                str(told["seed"]),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created)),
                str(told["data"]),
                "\n".join([told["method"], *settings]),
            )
        )
    return Fitting(columns, rows)


def rm(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="The names of runs (`sordino runs`).")],
    store: StoreFolder = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the models, checkpoints and curves of runs. Their spending stays in the store."""
    import sys

    from sordino.store.spending import remove
    from sordino.store.store import Store, gone

    found = Store(store, must_exist=True)
    names = list(dict.fromkeys(names))
    for name in names:
        row = found.get(name)
        if row.gone and not found.path(name).exists():
            raise gone(row)
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise UserError("Removing runs cannot be undone: say --yes where nobody can be asked.")
        typer.confirm(f"Remove {', '.join(names)}? Their models cannot be brought back.", abort=True)
    for name in names:
        remove(name, found)
    if as_json:
        typer.echo(json.dumps({"removed": names}))
        return
    typer.echo(
        f"Removed {', '.join(names)}. What {'it' if len(names) == 1 else 'they'} cost still counts in this store."
    )
