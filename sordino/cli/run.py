"""Commands that make runs and take them up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import (
    DATA,
    NOISE,
    SCHEDULE,
    File,
    Json,
    Keys,
    Log,
    StoreFolder,
    WorkerCount,
    experiment_from,
    taking,
)
from sordino.errors import Stopped
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.util.formatting import delta_text

if TYPE_CHECKING:  # commands that make no run show their help before torch would be loaded
    from sordino.store.store import Store


class RunStoppedError(Exception):
    """Ctrl-C while a run was under way. Typer takes a KeyboardInterrupt away, and with it what it says."""


@contextlib.contextmanager
def watched(as_json: bool) -> Iterator[Any]:
    """A display for what goes on; Ctrl-C meanwhile is told in a sentence."""
    from sordino.report.terminal.progress import watching

    try:
        with watching(quiet=as_json) as display:
            yield display
    except Stopped as stop:
        raise RunStoppedError(str(stop)) from stop


@contextlib.contextmanager
def getting_ready(as_json: bool) -> Iterator[None]:
    """Say at once to people at a terminal that something happens: libraries, data and accounting may take seconds."""
    from rich.console import Console

    console = Console(stderr=True, markup=False)
    if as_json or not console.is_terminal:
        yield
        return
    with console.status("Getting ready: libraries, data, network, noise."):
        yield


@taking(
    *(*DATA, "model", "method", "variant", "privacy", "personal", *SCHEDULE, "epsilon", *NOISE),
    *("budget_over_runs", "seed", "workers", "store", "set"),
)
def run(
    keys: Keys,
    experiment: File = None,
    log: Log = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the run is executed, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment. Without arguments: the built-in example on real data."""
    from sordino.report.logs import check_log, logged
    from sordino.report.terminal.progress import Place

    check_log(log)
    with getting_ready(as_json):
        chosen = experiment_from(experiment, keys)
        from sordino.experiment.prepare import prepare
        from sordino.experiment.run import start
        from sordino.store.store import Store

        prepared = prepare(chosen)
    reasons = prepared.choice.reasons if explain else []
    before = [] if as_json else [*reasons, *(f"Note: {note}" for note in prepared.notes)]
    with contextlib.closing(Store(chosen.store)) as store:
        with watched(as_json) as screen, logged(screen, log, chosen.store) as display:
            place = Place(display, prepared)

            def begun(run: str) -> None:
                for sentence in before:
                    typer.echo(sentence)
                place.begin(run)

            result = start(prepared, store, place, begun)
            place.end(result["accuracy"]["personal"])
        told = [] if as_json else prepared.notes  # before the run
        shown_after = {"notes": [note for note in result["notes"] if note not in told]}
        show_result(result | shown_after | ({"execution": reasons} if explain else {}), store, as_json)


def resume(
    run: Annotated[str, typer.Argument(help="The run's name (`sordino runs`).")],
    store: StoreFolder = DEFAULT_STORE,
    workers: WorkerCount = None,
    budget_over_runs: Annotated[
        float | None, typer.Option(help="Another limit for all runs on these people. [default: the run's own]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take up a stopped run: it ends with the numbers it would have had."""
    from sordino.experiment.run import resume as resume_run
    from sordino.store.store import Store

    found = Store(store, must_exist=True)
    with watched(as_json) as display:
        row = found.get(run)
        telling = display.run(run, row.rounds, row.configuration)
        result = resume_run(run, found, telling, workers, budget_over_runs)
        telling.end(result["accuracy"]["personal"])
    show_result(result, found, as_json)


def show_meaning(rows: list[dict[str, Any]], console: Any) -> None:
    """At which delta and for which unit a comparison's epsilons hold, what they leave out, and what to know besides."""
    from sordino.report.wording import UNPROTECTED, compared_words, ended, sentences_of, unprotected
    from sordino.study.sweep import sends_anything

    meanings: dict[str, list[str]] = {}
    compared: dict[str, None] = {}
    for row in rows:
        if not sends_anything(row["method"]):  # nothing left, so that nothing needs a promise
            continue
        protecting = f"epsilon at delta = {delta_text(row['delta'])}, protecting one {row['unit']}"
        meanings.setdefault(UNPROTECTED if unprotected(row["epsilon"]) else protecting, []).append(row["method"])
        if not unprotected(row["epsilon"]):
            compared |= dict.fromkeys(compared_words({"unit": row["unit"]}))
    for meaning, names in meanings.items():
        whose = "" if len(meanings) == 1 else f": {', '.join(names)}"
        console.print(f"{meaning}{whose}", style="dim", highlight=False)
    for sentence in compared:
        console.print(sentence, style="dim", highlight=False)
    for reason in sentences_of(rows, "not_covered"):
        console.print(f"Not covered: {ended(reason)}", style="red", highlight=False)
    for note in sentences_of(rows, "notes"):
        console.print(f"Note: {note}", style="yellow", highlight=False)


def show_result(result: Mapping[str, Any], store: Store, as_json: bool, measured: str | None = None) -> None:
    """Show a run's summary, and the cost of all runs in the `store` on the same people."""
    from sordino.store.spending import over_runs, sentence

    total = over_runs(store, store.get(result["run"]).people, result["unit"], result["delta"])
    if as_json:
        typer.echo(json.dumps({**result, "over_runs": total}))
        return
    from rich.console import Console

    from sordino.report.terminal.tables import SIMULATED, run_report

    console = Console(markup=False)
    console.print(run_report(result, str(store.folder), measured or SIMULATED), highlight=False)
    together = sentence(total, result["protect_from"])
    if together:
        console.print(together, highlight=False)
