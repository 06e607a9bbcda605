"""Simulated runs of a prepared experiment: start a new one, or resume one that was stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.assembly import assemble, gate_of, simulate
from sordino.errors import FAILURES, Stopped, UserError, WorkerError
from sordino.experiment import blends
from sordino.experiment.blends import Blends
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import in_store
from sordino.experiment.identity import describe_machine
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.result import Summary, summarize
from sordino.federation.blending import KINDS, instructions, makes_mixtures
from sordino.federation.client import STEP, Question
from sordino.federation.evaluation import NO_SHARED_MODEL, evaluate, message_of, whom_to_ask
from sordino.federation.rounds import Watch
from sordino.federation.run_state import Ending, Served
from sordino.federation.transport import HostingTransport
from sordino.learning.metrics import ClientMetrics
from sordino.method import State
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import number_of_attempt
from sordino.privacy.noise import new_nonce
from sordino.simulator import choice
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import Stream
from sordino.store.database import saving
from sordino.store.journal import OtherValuesError
from sordino.store.run_files import RunFiles
from sordino.store.spending import check_lifetime, to_be_kept
from sordino.store.store import NewRun, RunRow, Store, gone
from sordino.trained.models import described, feature_tensors, measured
from sordino.util import processes
from sordino.util.files import KeptFile
from sordino.util.processes import single_threaded, sparing_old_objects

Host = Callable[[Prepared, Gate, Path, Callable[[str], None]], contextlib.AbstractContextManager[HostingTransport]]
"""Maker of the transport to the clients of a run, for as long as a session of it takes. Its arguments are the prepared
experiment, the exit of all clients, the run's folder, and a function that stores that a step failed at a client."""


def on_this_machine(
    prepared: Prepared, gate: Gate, folder: Path, failed: Callable[[str], None]
) -> contextlib.AbstractContextManager[HostingTransport]:
    """Host a run's clients in this process and workers of its own."""
    return simulate(prepared, gate, folder, prepared.choice.workers, failed)


DEPLOYMENT = "deployment.db"
"""File that only the folder of a deployed run has."""


def start(
    prepared: Prepared,
    store: Store | None = None,
    watch: Watch | None = None,
    begun: Callable[[str], None] | None = None,
    *,
    number: int | None = None,
    host: Host = on_this_machine,
) -> Summary:
    """Start a new run of a prepared experiment, and return its summary when it is done.

    Args:
        prepared: The experiment.
        store: Where the run is kept; None for the store that the experiment names.
        watch: Is told how the run goes on.
        begun: Is told the run's name before its first round.
        number: Number at the end of its name, where no other run has it; None for the next free one.
        host: Makes the transport to its clients.
    """
    prepared = compiled(prepared)  # before anything is written: it may not be possible here
    with contextlib.ExitStack() as held:
        if store is None:
            store = held.enter_context(contextlib.closing(Store(prepared.experiment.store)))
        with store.admitting():
            check_lifetime(store, prepared)
            run = register(prepared, store, number)
            held.enter_context(store.lock(run))  # whoever is let in next sees it under way
        if begun is not None:
            begun(run)
        return _advance(prepared, store, run, watch, host)


def register(prepared: Prepared, store: Store, number: int | None = None) -> str:
    """Write a new run of a prepared experiment into a store, and return its name, which ends with `number` where no
    other run has that."""
    experiment = prepared.experiment
    return store.create(
        f"{experiment.method.rpartition(':')[2]}-{prepared.data.name}",
        NewRun(
            method=experiment.method,
            configuration=experiment.model_dump(mode="json", exclude={"store"}),
            identity=prepared.identity,
            people=prepared.data.people,
            unit=prepared.unit,
            rounds=experiment.rounds,
            planned=to_be_kept(prepared, prepared.data.deal),
            notes=prepared.notes,
            nonce=new_nonce() if prepared.needs_nonce else b"",
        ),
        number,
    )


def resume(
    run: str,
    store: Store,
    watch: Watch | None = None,
    workers: int | None = None,
    budget_over_runs: float | None = None,
    host: Host = on_this_machine,
) -> Summary:
    """Resume a run where it was stopped; one that is done returns its summary again. `workers` and `budget_over_runs`
    are the run's own where they are not given."""
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
    prepared = compiled(prepare(Experiment.make(row.configuration | changes), resumed=True))
    with contextlib.ExitStack() as held:
        with store.admitting():
            check_lifetime(store, prepared, run)  # others may have spent meanwhile
            held.enter_context(store.lock(run))
        return _advance(prepared, store, run, watch, host)


def carry_on(prepared: Prepared, store: Store, run: str, watch: Watch | None = None) -> Summary:
    """Work on a registered run until it is done, and return its summary."""
    prepared = compiled(prepared)
    with store.lock(run):
        return _advance(prepared, store, run, watch)


def _advance(prepared: Prepared, store: Store, run: str, watch: Watch | None, host: Host = on_this_machine) -> Summary:
    """Work on a run whose lock this process holds until the run is done."""
    processes.keep_freed()
    with _explain_resuming(run, store.folder), single_threaded(), saving(store.folder, store.path(run)):
        # A resumed run that computes other values gives up what it asked since the last checkpoint (OtherValuesError).
        # The second attempt has nothing to compare with, so it cannot give up again.
        with contextlib.suppress(OtherValuesError):
            return _attempt(prepared, store, run, watch, host)
        return _attempt(prepared, store, run, watch, host)


def _attempt(prepared: Prepared, store: Store, run: str, watch: Watch | None, host: Host) -> Summary:
    row = store.get(run)  # under the lock: another process may have been at work until now
    if row.summary is not None:
        return _finished(row, store)
    prepared = replace(prepared, notes=prepared.notes if row.notes is None else row.notes, nonce=row.nonce)
    if row.failed is not None:
        why = f"{row.failed}, and the run was taken up again: that it failed may tell of records"
        prepared = replace(prepared, disclosed=[*prepared.disclosed, why])
    return _Session(prepared, store, run, watch, host).work()


@dataclass(frozen=True)
class _Session:
    """One session of work on a run, in the process that holds the run's lock."""

    prepared: Prepared
    store: Store
    run: str
    watch: Watch | None
    host: Host

    @property
    def folder(self) -> Path:
        """Folder of the run's files."""
        return self.store.path(self.run)

    def work(self) -> Summary:
        """Run the method's script to its end, evaluate the clients' models, and store everything."""
        prepared, experiment = self.prepared, self.prepared.experiment
        run_files = RunFiles(
            self.store,
            self.run,
            prepared.identity,
            prepared.ledger(),
            machine=describe_machine(experiment.device),
            durable=not prepared.repeats,
            limited=experiment.budget_over_runs is not None,
        )
        gate = gate_of(prepared)
        with (
            contextlib.closing(run_files),
            self.host(prepared, gate, self.folder, self._note_failure) as transport,
        ):
            server = assemble(prepared, transport, run_files, gate=gate, ground=prepared.ground, watch=self.watch)
            with self._explain_failure(), sparing_old_objects():
                server.run_script(prepared.initial)
                ending = server.end()
                return self._finish(transport, run_files, ending, gate)

    def _finish(self, transport: HostingTransport, run_files: RunFiles, ending: Ending, gate: Gate) -> Summary:
        """Evaluate and store the models of a run whose script has ended, and sum the run up."""
        prepared = self.prepared
        blended = self._blend(transport, run_files, ending)
        # Behind the last checkpoint before the end: a run that is taken up asks the same again, and draws the same.
        evaluation, notes = self._evaluate(transport, run_files, ending, gate)
        own = _own_figures(transport, ending.served)
        reached = own if blended is None else blended.reached()
        names, task = prepared.data.names, prepared.data.task
        accuracies = own.each[:, task.metrics.index(task.score)]
        summary = summarize(self.run, prepared, ending, run_files, names, accuracies, blended, reached)
        models = self._save_models(transport, ending, blended, reached.each)
        notes = [*summary.notes, *notes, *_draw(prepared, ending, self.folder)]
        summary = replace(summary, notes=notes, evaluation=evaluation)
        run_files.save(ending.now, summary, models)
        return summary

    def _evaluate(
        self, transport: HostingTransport, run_files: RunFiles, ending: Ending, gate: Gate
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """Figures of the server's model from a noised sum over all test records, with the true ones beside them,
        and notes; nothing where it is not paid for."""
        prepared, served = self.prepared, ending.served
        if not prepared.evaluation:
            return None, []
        if served is None or len(served.models) != 1:
            return None, [NO_SHARED_MODEL]
        model, who, asked = served.models[0], whom_to_ask(prepared.schedule, gate), ending.now.questions
        number = number_of_attempt(asked, run_files.ledger.attempts(asked))
        question = Question(number, prepared.schedule.rounds, STEP, message_of(model.clone()), who)
        task = prepared.data.task
        found = evaluate(transport.ask, question, prepared.steps(), gate, run_files, task)
        tested = [prepared.data.test.part(client) for client in who]
        with torch.no_grad():
            parts = [prepared.learner.logits(model, some) for x, _ in tested for some in x.split(1000) if len(some)]
        weights = [np.full(len(y), 1.0 if prepared.method.unit.record_level else 1 / max(1, len(y))) for _, y in tested]
        labels = torch.cat([y for _, y in tested]).numpy()
        true = None
        if parts:
            said = task.predict(torch.cat(parts).double()).numpy()
            true = task.true_figures(said, labels, np.concatenate(weights))
        return found.to_dict() | {"true": true}, found.notes()

    def _blend(self, transport: HostingTransport, run_files: RunFiles, ending: Ending) -> Blends | None:
        """Let clients blend their models, where the experiment wants that."""
        prepared = self.prepared
        personal = prepared.experiment.personal
        if not makes_mixtures(personal, prepared.data.task):
            return None
        if run_files.restored is None or run_files.restored.rounds < ending.now.rounds:
            run_files.save(ending.now)  # blending may take longer than the rounds did
        begun = time.monotonic()
        method, schedule, records = prepared.method, prepared.schedule, prepared.data.train.sizes
        message = instructions(personal, method, schedule, prepared.allowance, records, prepared.initial, ending.served)
        made = blends.make(transport, message, self.folder, prepared.data.task, self.watch)
        run_files.seconds += time.monotonic() - begun
        return made

    def _save_models(
        self, transport: HostingTransport, ending: Ending, blended: Blends | None, figures: np.ndarray
    ) -> KeptFile:
        """Write the trained models: `personal` with one row for each of `clients`, and the server's `global`.

        A server with several models has one row for each, and `clusters` says which is whose. Where clients blend
        models, `averaged` has the means of the server's over the rounds, and `blend` has for each of `blend_clients`
        one row with the models that it trained alone; so have `weights`, `powers` and `offsets`, which say how they are
        mixed. `metrics` has one row for each client of the run, and `metrics_known` says which of them there are. The
        file's metadata describe all of it.
        """
        who = transport.participants()
        tensors = {"clients": torch.tensor(who, dtype=torch.int64), **measured(figures)}
        tensors |= feature_tensors(self.prepared.extractor)
        if ending.served is not None:
            tensors |= ending.served.tensors()
        width = self.prepared.learner.layout.size
        streams = {"personal": Stream(len(who), width, transport.personal_models(who))}
        if blended is not None:
            trained = len(KINDS[self.prepared.experiment.personal].trains)
            tensors |= {"blend_clients": torch.tensor(blended.clients), **blended.rules}
            if trained:
                streams["blend"] = Stream(len(blended.clients), trained * width, blended.models())
        about = described(self.run, self.prepared)
        return checkpoints.write_models(tensors, streams, self.folder / checkpoints.MODELS, about.metadata())

    def _note_failure(self, what: str) -> None:
        """Store that something failed at a client. The script may have asked in a thread of its own, which needs a
        connection of its own."""
        with contextlib.closing(Store(self.store.folder)) as store:
            store.fail(self.run, what)

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        """Add to an error at a client what it means for the run."""
        try:
            yield
        except Exception as error:
            failed = self.store.get(self.run).failed
            if failed is not None:
                error.add_note(
                    f"{failed}. That it did may tell of records: the run {self.run!r} states no epsilon, and counts as "
                    "spent what it was going to spend at the most. The same code fails again on the same records: "
                    "correct it, and start a new run."
                )
            raise


def _draw(prepared: Prepared, ending: Ending, folder: Path) -> list[str]:
    """Draw the method's pictures; a note where its code fails. All is paid for by now, and no run is lost for want of a
    picture. On a full disk the run ends as everywhere, and can be resumed."""
    try:
        prepared.method.pictures(State(**ending.now.state), folder)
    except UserError:  # there is no matplotlib
        return []
    except OSError:
        raise
    except FAILURES as error:
        return [f"The method's pictures could not be drawn: {type(error).__name__}: {error}."]
    return []


def _own_figures(transport: HostingTransport, served: Served | None) -> ClientMetrics:
    """Metrics of every client's personal model; clients that never took part predict with the server's."""
    found = transport.metrics(range(transport.clients), None)
    each, sums = found.each, found.sums
    others = np.setdiff1d(np.arange(transport.clients), transport.participants())
    if served is not None and len(others):
        clusters = served.clusters.numpy()[others]
        for cluster in np.unique(clusters):
            mine = others[clusters == cluster]
            more = transport.metrics(mine.tolist(), served.models[int(cluster)])
            each[mine], sums = more.each, sums + more.sums
    return ClientMetrics(each, sums)


def _finished(row: RunRow, store: Store) -> Summary:
    """Summary of a finished run whose files are all there. Nobody writes to it any more: it needs no lock."""
    if row.gone:
        raise gone(row)
    assert row.summary is not None
    assert row.models is not None
    assert row.checkpoint is not None
    store.check(row.run)
    row.models.check(store.path(row.run), "The run is finished, but its file of models")
    with saving(store.folder):
        checkpoints.remove_leftovers(store.path(row.run), row.checkpoint.name, row.models.name)
    return Summary.from_dict(row.summary)


@contextlib.contextmanager
def _explain_resuming(run: str, folder: Path) -> Iterator[None]:
    """Tell whoever stopped a run, or lost one of its processes, how to resume it."""
    how = f"`sordino resume {run}{in_store(folder)}` takes the run up."
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"Stopped. {how}") from error
    except WorkerError as error:
        raise WorkerError(f"{error} {how}") from error


def compiled(prepared: Prepared) -> Prepared:
    """Prepared experiment with its step compiled, where it wants that, before workers are forked, which share it."""
    if prepared.experiment.compiled != "always" or prepared.compiled is not None:
        return prepared
    with single_threaded():
        made = choice.compile_for(prepared.method, prepared.learner.written, prepared.data)
    return replace(prepared, compiled=made)
