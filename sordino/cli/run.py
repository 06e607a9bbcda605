"""Commands that start runs and resume them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import (
    RUN,
    File,
    Json,
    Keys,
    Log,
    OnCluster,
    StoreFolder,
    WorkerCount,
    experiment_from,
    taking,
)
from sordino.errors import Stopped, UserError
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.util.formatting import delta_text

if TYPE_CHECKING:  # commands that make no run show their help before torch would be loaded
    from sordino.store.run_summary import Summary
    from sordino.store.store import Store
    from sordino.study.compare import ComparisonRow


class RunStoppedError(Exception):
    """Ctrl-C during a run, with the sentence to print; Typer would drop that of a KeyboardInterrupt."""


@contextlib.contextmanager
def progress_display(as_json: bool) -> Iterator[Any]:
    """Show progress, and turn Ctrl-C into one sentence."""
    from sordino.report.terminal.progress import watching

    try:
        with watching(quiet=as_json) as display:
            yield display
    except Stopped as stop:
        raise RunStoppedError(str(stop)) from stop


@contextlib.contextmanager
def getting_ready(as_json: bool) -> Iterator[None]:
    """Show people at a terminal that work has begun: libraries, data and accounting may take seconds, and features of
    many records minutes, of which a log has a line now and then."""
    from rich.console import Console

    console = Console(stderr=True, markup=False)
    if as_json:
        yield
        return
    from sordino.util.display import telling_extraction

    if not console.is_terminal:
        with telling_extraction(lambda text: console.print(text, highlight=False), every=10.0):
            yield
        return
    with (
        console.status("Getting ready: libraries, data, network, noise.") as status,
        telling_extraction(status.update, every=0.5),
    ):
        yield


def check_cluster(address: str | None) -> None:
    """Refuse a cluster that cannot be asked, before any work."""
    if address is not None:
        from sordino.cluster.connection import check

        check(address)


@contextlib.contextmanager
def host_of(address: str | None, prepared: Any) -> Iterator[tuple[Any, list[str]]]:
    """Where a run's clients are worked for, and sentences on that: on this machine, or where a cluster may do it."""
    if address is None:
        from sordino.experiment.run import on_this_machine

        yield on_this_machine, []
        return
    from sordino.cluster.team import hosting

    with hosting(address, prepared) as (host, why):
        yield host, [why]


@contextlib.contextmanager
def crew_of(address: str | None, per_run: str | None, jobs: int | None) -> Iterator[Any]:
    """Who makes the runs of a study: a cluster, or None where this machine does."""
    if address is not None and jobs is not None:
        raise UserError(
            "--jobs is for this machine, and a cluster makes as many runs at once as have room: leave it out."
        )
    if address is None and per_run is None:  # nothing of a cluster is loaded
        yield None
        return
    from sordino.cluster.connection import check

    if address is not None:
        check(address)
    from sordino.cluster.study import connect_cluster

    with connect_cluster(address, per_run) as crew:
        yield crew


@taking(*RUN)
def run(
    keys: Keys,
    experiment: File = None,
    log: Log = None,
    cluster: OnCluster = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the run is executed, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment. Without arguments: the built-in example on real data."""
    from sordino.report.logs import check_log, log_runs
    from sordino.report.terminal.progress import Place

    check_log(log)
    check_cluster(cluster)
    with contextlib.ExitStack() as held:
        with getting_ready(as_json):
            chosen = experiment_from(experiment, keys)
            from sordino.experiment.prepare import prepare
            from sordino.experiment.run import start
            from sordino.store.store import Store

            prepared = prepare(chosen)
            host, where = held.enter_context(host_of(cluster, prepared))
        reasons = [*prepared.choice.reasons, *where] if explain else []
        notes = [note for note in prepared.notes if note != prepared.chosen]  # which the progress and the result tell
        before = [] if as_json else [*reasons, *(f"Note: {note}" for note in notes)]
        with contextlib.closing(Store(chosen.store)) as store:
            with progress_display(as_json) as screen, log_runs(screen, log, chosen.store) as display:
                place = Place(display, prepared)

                def begun(run: str) -> None:
                    for sentence in before:
                        typer.echo(sentence)
                    place.begin(run)

                result = start(prepared, store, place, begun, host=host)
                place.end(result.accuracy["personal"])
            told = [] if as_json else notes  # before the run
            result = replace(result, notes=[note for note in result.notes if note not in told])
            show_result(result, store, as_json, more={"execution": reasons} if explain else {})


def resume(
    run: Annotated[str, typer.Argument(help="The run's name (`sordino runs`).")],
    store: StoreFolder = DEFAULT_STORE,
    workers: WorkerCount = None,
    budget_over_runs: Annotated[
        float | None, typer.Option(help="Another limit for all runs on these people. [default: the run's own]")
    ] = None,
    cluster: OnCluster = None,
    as_json: Json = False,
) -> None:
    """Resume a stopped run. It ends with the numbers that it would have had without the stop."""
    check_cluster(cluster)
    from sordino.experiment.run import on_this_machine
    from sordino.experiment.run import resume as resume_run
    from sordino.store.store import Store

    host: Any = on_this_machine
    if cluster is not None:
        from sordino.cluster.team import host_by_rule

        host = host_by_rule(cluster)
    found = Store(store, must_exist=True)
    with progress_display(as_json) as display:
        row = found.get(run)
        telling = display.run(run, row.rounds, row.configuration)
        result = resume_run(run, found, telling, workers, budget_over_runs, host)
        telling.end(result.accuracy["personal"])
    show_result(result, found, as_json)


def show_meaning(rows: Sequence[ComparisonRow], console: Any) -> None:
    """Print at which delta and for which unit a comparison's epsilons hold, what they do not cover, and its notes."""
    from sordino.report.wording import UNPROTECTED, neighbour_words, protects_nothing, sentences_of, with_full_stop
    from sordino.study.sweep import sends_anything

    meanings: dict[str, list[str]] = {}
    compared: dict[str, None] = {}
    for row in rows:
        if not sends_anything(row.method):  # nothing left, so that nothing needs a promise
            continue
        protecting = f"epsilon at delta = {delta_text(row.delta)}, protecting one {row.unit}"
        meanings.setdefault(UNPROTECTED if protects_nothing(row.epsilon) else protecting, []).append(row.method)
        if not protects_nothing(row.epsilon):
            compared |= dict.fromkeys(neighbour_words(row.unit))
    for meaning, names in meanings.items():
        whose = "" if len(meanings) == 1 else f": {', '.join(names)}"
        console.print(f"{meaning}{whose}", style="dim", highlight=False)
    for sentence in compared:
        console.print(sentence, style="dim", highlight=False)
    for reason in sentences_of(rows, "not_covered"):
        console.print(f"Not covered: {with_full_stop(reason)}", style="red", highlight=False)
    for note in sentences_of(rows, "notes"):
        console.print(f"Note: {note}", style="yellow", highlight=False)


def show_result(result: Summary, store: Store, as_json: bool, more: Mapping[str, Any] | None = None) -> None:
    """Print a run's result, and what all runs of the `store` on the same people cost together.

    `more` holds further keys of the JSON document.
    """
    from sordino.store.spending import over_runs, sentence

    total = over_runs(store, store.get(result.run).people, result.unit, result.delta)
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), **(more or {}), "over_runs": total}))
        return
    from rich.console import Console

    from sordino.report.terminal.results import run_report

    console = Console(markup=False)
    console.print(run_report(result, str(store.folder)), highlight=False)
    together = sentence(total, result.protect_from)
    if together:
        console.print(together, highlight=False)
