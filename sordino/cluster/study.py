"""Studies on a Ray cluster: each run is a Ray task of its own, with its own cores or card, and lands in the store here.

A run is registered here before it is sent, with all that it may spend, and is locked until it is back. It comes back
whole: done, or stopped where it had come to. A run that is lost with its node is sent again; what it had computed was
seen by nobody, and its noise follows from the same keys.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sordino.cluster.connection import Cluster, PerRun, check, connected
from sordino.cluster.node import Sent, make_run, prepared_for_nodes, read_files, write_files
from sordino.errors import Stopped, UserError, WorkerError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, register
from sordino.federation.rounds import RoundReport
from sordino.store.merging import alone, put
from sordino.store.run_summary import Summary
from sordino.store.spending import check_lifetime
from sordino.store.store import Store
from sordino.study.run_cells import STOPPED, find_run, place_of
from sordino.study.sweep import Cell
from sordino.util.display import Display, Telling

ATTEMPTS = 4
"""Attempts to run a cell on the cluster before giving up."""
HEARD = 0.3
"""Seconds between two looks at what runs tell."""
ENDING = 30.0
"""Seconds that runs have to stop after Ctrl-C; one that takes longer begins again where it was when it was sent."""


class Mailbox:
    """Actor through which runs tell how they go on, and learn that they must stop."""

    def __init__(self) -> None:
        self._told: dict[int, Any] = {}
        self._stops = False

    def tell(self, place: int, what: Any) -> bool:
        """Keep the last that a run has told; returns whether all must stop."""
        self._told[place] = what
        return self._stops

    def take(self) -> dict[int, Any]:
        """Reports of runs since the last call."""
        told, self._told = self._told, {}
        return told

    def stop(self) -> None:
        """Have all runs stop after the round that they are in."""
        self._stops = True


def work_on_cell(packed: Any, files: Any, run: str, place: int, mailbox: Any) -> Sent:
    """Task of one run; a mailbox that is gone does not keep it from its work.

    Ray gives a task's core away while it waits for an answer, and would have more runs than cores at once. So the
    answer to a report is looked at before the next one, and nothing waits for it.
    """
    import ray

    asked: list[Any] = []

    def tell(what: Any) -> bool:
        stops = False
        try:
            if asked:
                known, _ = ray.wait(asked, timeout=0)
                stops = bool(known and ray.get(known[0]))
                if not known:  # the mailbox has not come to it yet: it holds the newest report soon enough
                    return False
                asked.clear()
            asked.append(mailbox.tell.remote(place, what))
        except ray.exceptions.RayError:
            asked.clear()
        return stops

    return make_run(packed, files, run, tell)


@dataclass
class _Way:
    """A run on its way."""

    place: int
    """Place of its cell in the study."""
    run: str
    prepared: Prepared
    telling: Telling
    held: contextlib.ExitStack
    """Lock of the run."""
    attempts: int = 0


@dataclass
class OnCluster:
    """A cluster that makes the runs of a study."""

    cluster: Cluster
    per_run: PerRun
    _ways: dict[Any, _Way] = field(default_factory=dict)

    def results(self, cells: Sequence[Cell], display: Display, store: Store) -> list[Summary]:
        ray, found = self.cluster.ray, dict[int, Summary]()
        room, waiting = self.cluster.room(self.per_run), longest_first(cells)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        try:
            while len(found) < len(cells):
                # One more than fits, so that no node waits while the next run is prepared here.
                while waiting and len(self._ways) <= room:
                    place, cell = waiting.pop(0)
                    known = self._send(place, cell, display, store, mailbox)
                    if known is not None:
                        found[place] = known
                        display.total(len(found), len(cells))
                self._hear(mailbox, found, store, HEARD)
                display.total(len(found), len(cells))
        except KeyboardInterrupt as error:
            self._stop(mailbox, store)
            raise Stopped(STOPPED) from error
        finally:
            for reference, way in self._ways.items():
                with contextlib.suppress(Exception):  # the cluster itself may be gone
                    ray.cancel(reference, force=True)
                way.held.close()
            self._ways = {}
            with contextlib.suppress(Exception):
                ray.kill(mailbox)
        return [found[place] for place in range(len(cells))]

    def _send(self, place: int, cell: Cell, display: Display, store: Store, mailbox: Any) -> Summary | None:
        """Send a run to the cluster; returns the summary of one that the store has already."""
        experiment = cell.experiment.model_copy(update={"workers": cell.experiment.workers or self.per_run.workers})
        prepared = prepare(experiment)
        row = find_run(prepared, store)
        if row is not None and row.summary is not None:
            return Summary.from_dict(row.summary)
        if row is not None:
            changes = {"store": str(store.folder), "workers": experiment.workers}
            prepared = prepare(Experiment.make(row.configuration | changes), resumed=True)
        with contextlib.ExitStack() as held:
            with store.admitting():
                if row is not None:  # it may have a limit of its own, and others may have spent meanwhile
                    check_lifetime(store, prepared, row.run)
                run = register(prepared, store, cell.number) if row is None else row.run
                held.enter_context(store.lock(run))
            way = _Way(place, run, prepared, place_of(display, cell), held.pop_all())
        self._give(way, store, mailbox)
        return None

    def _give(self, way: _Way, store: Store, mailbox: Any) -> None:
        """Give a run to whichever node has room, as far as it has come here."""
        ray = self.cluster.ray
        try:
            with tempfile.TemporaryDirectory(prefix="sordino-") as place:
                with alone(way.run, store, Path(place)):
                    pass
                files = dict(read_files(Path(place)))
            store.send(way.run)
            task = ray.remote(work_on_cell).options(**self.per_run.options(), max_retries=0)
            sent = task.remote(prepared_for_nodes(way.prepared), ray.put(files), way.run, way.place, mailbox)
        except BaseException:
            way.held.close()
            raise
        self._ways[sent] = way

    def _hear(self, mailbox: Any, found: dict[int, Summary], store: Store, seconds: float) -> None:
        """Wait for a short time, show what runs tell, and take what has come back."""
        ray = self.cluster.ray
        if not self._ways:
            return
        done, _ = ray.wait(list(self._ways), num_returns=1, timeout=seconds)
        with contextlib.suppress(ray.exceptions.RayError):
            places = {way.place: way.telling for way in self._ways.values()}
            for place, what in ray.get(mailbox.take.remote(), timeout=10).items():
                if place in places:
                    _show(places[place], what)
        for reference in done:
            way = self._ways.pop(reference)
            sent = self._received(reference, way)
            if sent is None:
                way.attempts += 1
                self._give(way, store, mailbox)
                continue
            with way.held:
                self._land(sent, way, store)
            if sent.stopped:  # only after Ctrl-C
                continue
            summary = found[way.place] = Summary.from_dict(store.get(way.run).summary or {})
            way.telling.end(summary.accuracy["personal"])

    def _received(self, reference: Any, way: _Way) -> Sent | None:
        """Result of a run; None where its node or process died."""
        exceptions = self.cluster.ray.exceptions
        try:
            sent: Sent = self.cluster.ray.get(reference)
            return sent
        except exceptions.RayTaskError as error:
            way.held.close()
            raise WorkerError(f"A run failed on a node: {str(error).strip().splitlines()[-1]}.") from error
        except exceptions.RayError as error:
            if way.attempts + 1 == ATTEMPTS:
                way.held.close()
                raise WorkerError(
                    f"The run {way.run!r} was sent to {ATTEMPTS} nodes and came back from none, perhaps for lack of "
                    "memory. Give the same command again to go on."
                ) from error
            return None

    def _land(self, sent: Sent, way: _Way, store: Store) -> None:
        """Put a run that came back into the store; what went wrong with it is raised."""
        if sent.files:
            with tempfile.TemporaryDirectory(prefix="sordino-") as place:
                write_files(sent.files, Path(place))
                with contextlib.closing(Store(Path(place), must_exist=True)) as source:
                    put(source.get(way.run), source, store, way.run)
        if sent.refused:
            raise UserError(sent.refused)
        if sent.failed:  # once more here, where what went wrong is raised as it is
            way.held.close()
            carry_on(way.prepared, store, way.run)
            raise WorkerError(f"A run failed on a node ({sent.failed}), but not when repeated here.")

    def _stop(self, mailbox: Any, store: Store) -> None:
        """Have all runs stop, and take what they have done."""
        ray, left = self.cluster.ray, ENDING
        with contextlib.suppress(ray.exceptions.RayError, UserError, KeyboardInterrupt):
            ray.get(mailbox.stop.remote(), timeout=ENDING)
            while self._ways and left > 0:
                self._hear(mailbox, {}, store, HEARD)
                left -= HEARD


@contextlib.contextmanager
def connect_cluster(address: str | None, per_run: str | None = None) -> Iterator[OnCluster | None]:
    """Connect to the cluster that makes the runs of a study, until the block ends; None where this machine makes them.

    Args:
        address: The cluster; None for this machine.
        per_run: Part of a node that each run has for itself, as in `cpus=2,gpus=0.5`.
    """
    if address is None:
        if per_run is not None:
            raise UserError("--per-run is for runs on a cluster: name one with --cluster.")
        yield None
        return
    check(address)
    part = PerRun() if per_run is None else PerRun.read(per_run)
    with connected(address) as cluster:
        cluster.room(part)
        yield OnCluster(cluster, part)


def longest_first(cells: Sequence[Cell]) -> list[tuple[int, Cell]]:
    """Cells and their places, in the order in which they are sent: long runs first, so that no node is idle while
    another works on the last one. Runs get the numbers of the cells' own order."""
    numbered = [replace(cell, number=cell.number or place + 1) for place, cell in enumerate(cells)]
    return sorted(enumerate(numbered), key=lambda entry: -_passes(entry[1].experiment))


def _passes(experiment: Experiment) -> float:
    """Passes of all clients over their records in a run, by which runs of a study are longer or shorter."""
    return experiment.build_method().passes() * experiment.rounds * experiment.participation


def _show(telling: Telling, what: Any) -> None:
    """Show what a run has told: a round, or how many clients have blended."""
    if isinstance(what, RoundReport):
        telling(what)
    else:
        telling.blending(*what)


def run_there(cluster: Cluster, per_run: PerRun, action: Any, *arguments: Any) -> Any:
    """Result of a function that is called on a node with room for it; a sentence for users is raised here as it is."""
    ray = cluster.ray
    cluster.room(per_run)
    task = ray.remote(action).options(**per_run.options(), max_retries=ATTEMPTS)
    try:
        return ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, Exception) else error from error
    except ray.exceptions.RayError as error:
        raise WorkerError(
            "The nodes that were at work died one after the other, perhaps for lack of memory."
        ) from error
