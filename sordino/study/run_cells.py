"""Runs of a study: finished ones are taken from the store, stopped ones are resumed.

`Crew` is who makes them: this process, one after the other; several processes at once; or a cluster
(`sordino.cluster.study`). The results are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sordino.errors import Stopped, UserError, WorkerError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import resume, start
from sordino.federation.rounds import RoundReport, Watch
from sordino.store.run_summary import Summary
from sordino.store.store import RunRow, Store
from sordino.study.sweep import Cell
from sordino.util.display import Display, Telling


def run_or_reuse(
    experiment: Experiment,
    store: Store,
    watch: Watch | None = None,
    begun: Callable[[str], None] | None = None,
    number: int | None = None,
) -> Summary:
    """Summary of an experiment's run, which is reused, resumed or started; `begun` is called with the name of a new
    one, which ends with `number` where no other does."""
    prepared = prepare(experiment)
    row = find_run(prepared, store)
    if row is None:
        return start(prepared, store, watch, begun, number=number)
    return Summary.from_dict(row.summary) if row.summary else resume(row.run, store, watch, experiment.workers)


def find_run(prepared: Prepared, store: Store) -> RunRow | None:
    """The newest run of a prepared experiment that is in a store, and not under way; None where there is none."""
    found = (row for row in store.all() if row.identity == prepared.identity)
    return next((row for row in found if row.state in ("stopped", "failed", "done")), None)


MOST_JOBS = 256
WORTH = 2
"""Least number of runs per process with which starting processes pays."""
SMALL = 2**26
"""Most bytes of records of which each process may hold a copy without being asked to."""


class Crew(Protocol):
    """Who makes the runs of a study."""

    def results(self, cells: Sequence[Cell], display: Display, store: Store) -> list[Summary]:
        """Run all cells; returns their summaries in the same order. Ctrl-C ends the work, and what is left is done
        when it is called again."""


class InTurn:
    """This process, which makes one run after the other."""

    def results(self, cells: Sequence[Cell], display: Display, store: Store) -> list[Summary]:
        found: list[Summary] = []
        for cell in cells:
            telling = place_of(display, cell)
            found.append(run_or_reuse(cell.experiment, store, telling, number=cell.number))
            telling.end(found[-1].accuracy["personal"])
            display.total(len(found), len(cells))
        return found


def results_of(
    cells: Sequence[Cell], display: Display, jobs: int | None, experiment: Experiment, crew: Crew | None = None
) -> list[Summary]:
    """Run all cells; returns their summaries in the same order. A `crew` that is given takes the place of `jobs`."""
    if crew is None:
        count = _jobs(cells, jobs, experiment)
        crew = Processes(count) if count > 1 else InTurn()
    elif experiment.budget_over_runs is not None:
        raise UserError("Runs at once cannot watch over `budget_over_runs`: leave out either it or --cluster.")
    display.total(0, len(cells))
    with contextlib.closing(Store(experiment.store)) as store:
        return crew.results(cells, display, store)


def _jobs(cells: Sequence[Cell], jobs: int | None, experiment: Experiment) -> int:
    """Number of runs at once: the requested one or, where sizes decide, one per core if runs are many and too small to
    use several cores each."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise UserError(f"There must be at least one job and at most {MOST_JOBS}, not {jobs}.")
    limited = experiment.budget_over_runs is not None
    if limited and (jobs or 1) > 1:
        raise UserError("Runs at once cannot watch over `budget_over_runs`: leave out either it or --jobs.")
    if jobs is not None:
        return min(jobs, len(cells))
    cores = experiment.model_copy(update={"workers": None}).process_count()
    if limited or experiment.workers is not None or cores == 1 or len(cells) < WORTH * cores:
        return 1
    prepared = prepare(cells[0].experiment)
    small = prepared.choice.engine == "stacked" and prepared.data.train.x.nbytes <= SMALL
    return min(cores, len(cells)) if small else 1


def place_of(display: Display, cell: Cell) -> Telling:
    """Display of a cell while it is worked on."""
    return display.run(cell.name, cell.experiment.rounds, cell.experiment.model_dump(mode="json"))


class _Job:
    """A process that makes one run after the other."""

    def __init__(self, workers: int) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sordino.study.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that waited in a buffer here would not be seen to be there
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._workers = workers
        self.cell: Cell | None = None
        self.begun = False
        """Whether the run of its cell is in the store."""
        self.place = -1
        self.telling: Telling | None = None

    @property
    def out(self) -> Any:
        """Pipe with its reports."""
        return self._process.stdout

    def begin(self, place: int, cell: Cell, display: Display) -> None:
        """Start work on a cell."""
        keys = cell.experiment.model_dump(mode="json")
        keys["workers"] = keys["workers"] or self._workers
        self.cell, self.place, self.begun = cell, place, False
        self.telling = place_of(display, cell)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: told when its answer is read
            self._process.stdin.write((json.dumps([keys, cell.number]) + "\n").encode())
            self._process.stdin.flush()

    def end(self) -> None:
        """Kill the process; what it was doing is either done or can be resumed."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


STOPPED = "Stopped. The same command goes on with what is left; `sordino runs` shows it."
"""Sentence after Ctrl-C."""


@dataclass(frozen=True)
class Processes:
    """Several processes on this machine."""

    count: int

    def results(self, cells: Sequence[Cell], display: Display, store: Store) -> list[Summary]:
        cores = cells[0].experiment.model_copy(update={"workers": None}).process_count()
        found: dict[int, Summary] = {}
        waiting = list(enumerate(cells))
        with contextlib.ExitStack() as ending, selectors.DefaultSelector() as selector:
            jobs = [_Job(max(1, cores // self.count)) for _ in range(self.count)]
            for job in jobs:
                ending.callback(job.end)
                selector.register(job.out, selectors.EVENT_READ, job)
            try:
                while len(found) < len(cells):
                    _hand_out(waiting, jobs, display)
                    for key, _ in selector.select():
                        _hear(key.data, found, store)
                        display.total(len(found), len(cells))
            except KeyboardInterrupt as error:
                raise Stopped(STOPPED) from error
        return [found[place] for place in range(len(cells))]


def _hand_out(waiting: list[tuple[int, Cell]], jobs: Sequence[_Job], display: Display) -> None:
    """Give a cell to an idle process once all cells before it have begun, because runs are numbered in their order."""
    idle = [job for job in jobs if job.cell is None]
    if waiting and idle and all(job.begun for job in jobs if job.cell is not None):
        idle[0].begin(*waiting.pop(0), display)


def _hear(job: _Job, found: dict[int, Summary], store: Store) -> None:
    """Read one line of a process's reports."""
    line = job.out.readline()
    cell, telling = job.cell, job.telling
    if cell is None or telling is None or not line.endswith(b"\n"):  # it ended, perhaps within a line
        raise WorkerError("A worker process died, perhaps for lack of memory. Give the same command again to go on.")
    said = json.loads(line)
    job.begun = True
    if "begun" in said:
        return
    if "report" in said:
        telling(RoundReport(**said["report"]))
        return
    if "refused" in said:
        raise UserError(said["refused"])
    if "failed" in said:  # once more here, where what went wrong is raised as it is
        run_or_reuse(cell.experiment, store)
        raise WorkerError(f"A run failed in a worker process ({said['failed']}), but not when repeated here.")
    summary = found[job.place] = Summary.from_dict(store.get(said["run"]).summary or {})
    telling.end(summary.accuracy["personal"])
    job.cell = job.telling = None
