"""Running a prepared experiment: a new run, or one that was stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from sordino.errors import Stopped, UserError, WorkerError
from sordino.experiment import blends
from sordino.experiment.blends import Blends
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import in_store
from sordino.experiment.identity import describe_machine
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.result import Summary, summarize
from sordino.federation.blending import TRAINED, instructions
from sordino.federation.client import Clients
from sordino.federation.execution import EXECUTIONS
from sordino.federation.rounds import Watch
from sordino.federation.run_state import Ending, Served
from sordino.federation.server import Server
from sordino.learning.metrics import Reached
from sordino.method import State
from sordino.privacy.gate import Gate
from sordino.privacy.noise import new_nonce
from sordino.simulator import choice
from sordino.simulator.engine import Engine
from sordino.simulator.memory import Memory
from sordino.simulator.simulation import Simulation
from sordino.simulator.workers import Workers
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import Stream
from sordino.store.database import saving
from sordino.store.journal import OtherValuesError
from sordino.store.run_files import RunBooks
from sordino.store.spending import check_lifetime, most, to_be_kept
from sordino.store.store import NewRun, RunRow, Store, gone
from sordino.trained.models import described, measured
from sordino.util import processes
from sordino.util.files import KeptFile
from sordino.util.processes import single_threaded

DEPLOYMENT = "deployment.db"
"""The file in the folder of a run on real machines that says so."""


def start(
    prepared: Prepared,
    store: Store | None = None,
    watch: Watch | None = None,
    begun: Callable[[str], None] | None = None,
) -> Summary:
    """Make a new run of a prepared experiment and return its summary; `begun` is told its name before it begins."""
    prepared = _with_compiled(prepared)  # before anything is written: it may not be possible here
    store = store or Store(prepared.experiment.store)
    with contextlib.ExitStack() as held:
        with store.admitting():
            check_lifetime(store, prepared)
            run = register(prepared, store)
            held.enter_context(store.lock(run))  # whoever is let in next sees it under way
        if begun is not None:
            begun(run)
        return _while_held(prepared, store, run, watch)


def register(prepared: Prepared, store: Store) -> str:
    """Write a run of a prepared experiment into a store; its name."""
    experiment = prepared.experiment
    return store.create(
        f"{experiment.method.rpartition(':')[2]}-{prepared.data.name}",
        NewRun(
            method=experiment.method,
            configuration=experiment.model_dump(mode="json", exclude={"store"}),
            identity=prepared.identity,
            people=prepared.data.people,
            unit=prepared.method.unit,
            rounds=experiment.rounds,
            planned=to_be_kept(prepared, prepared.data.deal),
            notes=prepared.notes,
            nonce=new_nonce() if prepared.needs_nonce else b"",
        ),
    )


def resume(
    run: str,
    store: Store,
    watch: Watch | None = None,
    workers: int | None = None,
    budget_over_runs: float | None = None,
) -> Summary:
    """Take up a run where it was stopped; one that is done returns its summary again. `workers` and `budget_over_runs`
    are its own where they are not given."""
    row = store.get(run)
    if row.summary is not None:
        return _finished(row, store)
    if (store.path(run) / DEPLOYMENT).exists():
        raise UserError(
            f"The run {run!r} is a deployment: `sordino serve --resume {run}` takes it up, or, if it "
            f"is a trial, `sordino deploy --resume {run}`."
        )
    given = {"workers": workers, "budget_over_runs": budget_over_runs}
    changes = {"store": str(store.folder)} | {key: value for key, value in given.items() if value is not None}
    prepared = prepare(Experiment.make(row.configuration | changes), resumed=True)
    with contextlib.ExitStack() as held:
        with store.admitting():
            check_lifetime(store, prepared, run)  # others may have spent meanwhile
            held.enter_context(store.lock(run))
        return _while_held(prepared, store, run, watch)


def carry_on(prepared: Prepared, store: Store, run: str, watch: Watch | None = None) -> Summary:
    """Work on a run until it is done."""
    with store.lock(run):
        return _while_held(prepared, store, run, watch)


def _while_held(prepared: Prepared, store: Store, run: str, watch: Watch | None) -> Summary:
    """The same where nobody else can advance the run."""
    prepared = _with_compiled(prepared)
    processes.keep_freed()
    with _resumable(run, store.folder), single_threaded(), saving(store.folder):
        row = store.get(run)  # again: another process may have been at work until now
        if row.summary is not None:
            return _finished(row, store)
        prepared = replace(prepared, notes=prepared.notes if row.notes is None else row.notes, nonce=row.nonce)
        # A resumed run that computes other values gives up what it asked since the last checkpoint (OtherValuesError).
        # The second attempt has nothing to compare with, so it cannot give up again.
        with contextlib.suppress(OtherValuesError), contextlib.ExitStack() as closing:
            return _carried_on(prepared, store, run, watch, closing)
        with contextlib.ExitStack() as closing:
            return _carried_on(prepared, store, run, watch, closing)


def _carried_on(
    prepared: Prepared, store: Store, run: str, watch: Watch | None, closing: contextlib.ExitStack
) -> Summary:
    method, layout = prepared.method, prepared.learner.layout
    blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, layout)
    memory = Memory(store.path(run), blank, prepared.schedule.clients)
    closing.callback(memory.close)
    limited = None if prepared.experiment.budget_over_runs is None else most(prepared)
    machine = describe_machine(prepared.experiment.device)
    books = RunBooks(store, run, prepared.identity, memory, method.unit, prepared.schedule.clients, limited, machine)
    closing.callback(books.close)
    gate = Gate(prepared.allowance, prepared.source, prepared.mechanism)
    workers = Workers(Engine(clients_of(prepared, gate), memory), prepared.choice.workers)
    closing.callback(workers.close)
    row = store.get(run)
    if row.failed is not None:
        why = f"{row.failed}, and the run was taken up again: that it failed may tell of records"
        prepared = replace(prepared, disclosed=[*prepared.disclosed, why])
    transport = Simulation(workers, lambda what: _note_failure(store.folder, run, what), own=not prepared.repeats)
    server = Server(
        method,
        prepared.schedule,
        prepared.budget,
        gate,
        transport,
        books,
        prepared.ground,
        prepared.experiment.evaluate_every,
        watch,
        averages=prepared.experiment.personal == "blend",
    )
    with _told_of_failure(store, run):
        server.run_script(prepared.initial)
        ending = server.end()
    told = getattr(watch, "blending", None)
    blended = _blended(prepared, transport, ending, books, store.path(run), told)
    own = _own_figures(transport, ending.served)
    reached = own if blended is None else blended.reached()
    names, task = [client.name for client in prepared.data.clients], prepared.data.task
    accuracies = own.each[:, task.metrics.index(task.score)]
    summary = summarize(run, prepared, ending, books, names, accuracies, blended, reached)
    models = _save_models(prepared, transport, ending, store, run, blended, reached.each)
    summary["notes"] += _draw(prepared, ending, store.path(run))
    books.save(ending.now, summary, models)
    return summary


def _draw(prepared: Prepared, ending: Ending, folder: Path) -> list[str]:
    """Draw the method's pictures; a note where its code fails. All is paid for by now, and no run is lost for want of a
    picture. On a full disk the run ends as everywhere, and can be resumed."""
    try:
        prepared.method.pictures(State(**ending.now.state), folder)
    except UserError:  # there is no matplotlib
        return []
    except OSError:
        raise
    except Exception as error:
        return [f"The method's pictures could not be drawn: {type(error).__name__}: {error}."]
    return []


def clients_of(prepared: Prepared, gate: Gate) -> Clients:
    """The clients of a prepared experiment, as one process works for them."""
    return Clients(
        prepared.method,
        prepared.learner,
        prepared.data,
        gate,
        EXECUTIONS[prepared.choice.engine],
        prepared.experiment.device,
        prepared.compiled,
    )


def _own_figures(transport: Simulation, served: Served | None) -> Reached:
    """What every client reaches with its personal model; who never took part predicts with the server's."""
    found = transport.metrics(range(transport.clients), None)
    each, sums = found.each, found.sums
    others = np.setdiff1d(np.arange(transport.clients), transport.participants())
    if served is not None and len(others):
        clusters = served.clusters.numpy()[others]
        for cluster in np.unique(clusters):
            mine = others[clusters == cluster]
            more = transport.metrics(mine.tolist(), served.models[int(cluster)])
            each[mine], sums = more.each, sums + more.sums
    return Reached(each, sums)


def _blended(
    prepared: Prepared,
    transport: Simulation,
    ending: Ending,
    books: RunBooks,
    folder: Path,
    told: Callable[[int, int], None] | None,
) -> Blends | None:
    """What clients blend of their models, where the experiment wants that; `told` is how far they are."""
    if prepared.experiment.personal != "blend":
        return None
    if books.restored is None or books.restored.rounds < ending.now.rounds:
        books.save(ending.now)  # blending may take longer than the rounds did
    begun = time.monotonic()
    method, schedule, records = prepared.method, prepared.schedule, prepared.data.train.sizes
    message = instructions(method, schedule, prepared.allowance, records, prepared.initial, ending.served)
    made = blends.make(transport, message, folder, prepared.data.task, told)
    books.seconds += time.monotonic() - begun
    return made


def _save_models(
    prepared: Prepared,
    transport: Simulation,
    ending: Ending,
    store: Store,
    run: str,
    blended: Blends | None,
    figures: np.ndarray,
) -> KeptFile:
    """Write the trained models: `personal` with one row for each of `clients`, and the server's `global`.

    A server with several models has one row for each, and `clusters` says which is whose. Where clients blend models,
    `averaged` has the means of the server's over the rounds, and `blend` has for each of `blend_clients` one row with
    the models that it trained alone; so have `weights`, `powers` and `labels`, which say how they are mixed.
    `metrics` has one row for each client of the run, and `metrics_known` says which of them there are. What all of it
    means stands in the file's metadata.
    """
    who = transport.participants()
    tensors = {"clients": torch.tensor(who, dtype=torch.int64), **measured(figures)}
    if ending.served is not None:
        tensors |= ending.served.tensors()
    width = prepared.learner.layout.size
    streams = {"personal": Stream(len(who), width, transport.personal_models(who))}
    if blended is not None:
        tensors |= {"blend_clients": torch.tensor(blended.clients), **blended.rules}
        streams["blend"] = Stream(len(blended.clients), TRAINED * width, blended.models())
    about = described(run, prepared)
    return checkpoints.write_models(tensors, streams, store.path(run) / checkpoints.MODELS, about.metadata())


def _finished(row: RunRow, store: Store) -> Summary:
    """The summary of a finished run, if it is still all there. Nobody writes to it any more: it needs no lock."""
    if row.gone:
        raise gone(row)
    assert row.summary is not None
    assert row.models is not None
    assert row.checkpoint is not None
    store.check(row.run)
    row.models.check(store.path(row.run), "The run is finished, but its file of models")
    with saving(store.folder):
        checkpoints.remove_leftovers(store.path(row.run), row.checkpoint.name, row.models.name)
    return cast(Summary, row.summary)


@contextlib.contextmanager
def _resumable(run: str, folder: Path) -> Iterator[None]:
    """Tell whoever stopped a run, or lost one of its processes, how it is taken up."""
    how = f"`sordino resume {run}{in_store(folder)}` takes the run up."
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"Stopped. {how}") from error
    except WorkerError as error:
        raise WorkerError(f"{error} {how}") from error


def _note_failure(folder: Path, run: str, what: str) -> None:
    """Store that something failed at a client. The script may have asked in a thread of its own, which needs a
    connection of its own."""
    with contextlib.closing(Store(folder)) as store:
        store.fail(run, what)


@contextlib.contextmanager
def _told_of_failure(store: Store, run: str) -> Iterator[None]:
    """Add to an error at a client what it means for the run."""
    try:
        yield
    except Exception as error:
        failed = store.get(run).failed
        if failed is not None:
            error.add_note(
                f"{failed}. That it did may tell of records: the run {run!r} states no epsilon, and counts as spent "
                "what it was going to spend at the most. The same code fails again on the same records: correct it, "
                "and start a new run."
            )
        raise


def _with_compiled(prepared: Prepared) -> Prepared:
    """With the compiled step where the experiment wants one: made before the workers are forked, which share it."""
    if prepared.experiment.compiled != "always" or prepared.compiled is not None:
        return prepared
    with single_threaded():
        made = choice.compile_for(prepared.method, prepared.learner.written, prepared.data)
    return replace(prepared, compiled=made)
