"""The state of a run in a store: ledger, rounds and checkpoints, so that a kill at any instant loses nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sordino.errors import UserError
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored
from sordino.federation.transcript import Transcript
from sordino.federation.transport import ClientMemory, MemorySnapshot
from sordino.privacy.ledger import Ledger, Row, split_attempt
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import check_keepable
from sordino.store.database import saving
from sordino.store.journal import Journal, has_journal
from sordino.store.run_summary import Summary
from sordino.store.spending import Spent, spending_of_ledger, within
from sordino.store.store import Progress, Store
from sordino.util.files import KeptFile
from sordino.util.formatting import finite_or_none


class RunFiles:
    """The stored state of one run, opened at its start or where its last checkpoint left it (`RunState`)."""

    transcript: Transcript | None = None

    def __init__(
        self,
        store: Store,
        run: str,
        identity: str,
        ledger: Ledger,
        machine: str = "",
        durable: bool = True,
        limited: bool = False,
        saves_every_round: bool = False,
    ) -> None:
        """Open the files of a run.

        Args:
            store: The store that the run is registered in.
            run: The run's name.
            identity: Hash of everything that decides the run's results; the run must have been started with it.
            ledger: An empty ledger, to which the rows of the last checkpoint are appended.
            machine: Description of the machine that computes values; empty where sites do.
            durable: Whether every charge is on disk before anything is asked: needed unless a resumed run repeats its
                values.
            limited: Whether to refuse charges above what the run planned to spend at the most.
            saves_every_round: Whether a checkpoint follows every round.
        """
        self._store, self._run, self._process = store, run, os.getpid()
        self.folder = store.path(run)
        """Folder of the run's files."""
        self._pending = Progress([], [], [])
        self._memory: ClientMemory | None = None
        self.saves_every_round = saves_every_round
        self.restored: Restored | None = None
        self.seconds = 0.0
        """Time spent in rounds, over all sessions of the run."""
        self.uploaded = 0
        """Bytes that left all clients."""
        self.received: int | None = 0
        """Bytes that the server sent to all clients; None where an earlier version began the run without counting."""
        self.start = float("nan")
        """Accuracy at the start of the last round."""
        row = store.get(run)
        self.deal: str | None = (row.planned or {}).get("deal")
        """Digest of which record stands with which client; None where that is not known."""
        if row.identity != identity:
            raise UserError(
                f"The run {run!r} was started with another experiment, other data, another version of Sordino, other "
                "code of its method, network or features or other weights of these than what is found now."
            )
        # Written down when the run was registered, by the same version of Sordino as this one.
        self._limit = cast(Spent, row.planned) if limited else None
        self.ledger = ledger
        self._referenced: list[str] = []
        self._snapshot: MemorySnapshot | None = None
        if row.checkpoint is not None:
            store.check(run, "rounds", "clients")
            for past, link in store.linked_rows(run):
                ledger.append(past, link)
            self._restore(row.checkpoint, row.seconds)
        # What a cluster lost with a run that was sent there was seen by nobody.
        begun = row.begun and not (row.sent and not has_journal(self.folder, len(ledger.rows)))
        self._journal = Journal(self.folder, len(ledger.rows), ledger.head, begun, machine, durable)
        for spent, link in self._journal.given_up:
            self._pending.ledger.append((len(self.ledger.rows), spent, link))
            self.ledger.append(spent, link)
        if row.sent or not row.begun:  # only now that it is there
            store.begin(run)
        attempts = 1 + max((split_attempt(spent.question)[1] for spent, _ in self._journal.given_up), default=-1)
        if attempts > row.given_up:  # before anything is asked again
            store.give_up(run, attempts)

    def attach(self, memory: ClientMemory | None) -> None:
        """Restore clients' memory from the last checkpoint, and include it in all later ones; None where the transport
        keeps none. Files that earlier sessions left behind are removed."""
        self._memory = memory
        current = [] if memory is None else [memory.path.name]
        # Read later than the checkpoint: journals, and pieces of blended models.
        needed = [path.name for pattern in ("ledger-*", "blend-*") for path in self.folder.glob(pattern)]
        checkpoints.remove_leftovers(self.folder, *self._referenced, *current, *needed)
        if memory is not None and self._snapshot is not None:
            memory.take_over(self.folder, self._snapshot)

    def charge(self, rows: Sequence[Row]) -> None:
        self._check_process()
        if not rows:
            return
        if self._limit is not None and not within(spending_of_ledger(self.ledger), self._limit):
            raise UserError(
                f"{rows[0].step} of round {rows[0].round + 1} would exceed the cost planned for the whole run, which "
                "budget_over_runs relies on. Likely causes: the method asks more often, or reads more of single "
                "messages, than its declarations say; or the run was resumed on another kind of machine and asks "
                "again. Nothing was asked. Run it without budget_over_runs to see its total cost."
            )
        links = self.ledger.links[-len(rows) :]
        with saving(self._store.folder, self.folder):
            self._journal.write(rows, links)
        position = len(self.ledger.rows) - len(rows)
        self._pending.ledger.extend((position + place, row, links[place]) for place, row in enumerate(rows))

    def answered(self, question: int, drawn: int) -> None:
        self._check_process()
        if drawn:
            with saving(self._store.folder, self.folder):
                self._journal.answered(question, drawn)

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        figures = (report.personal, report.personal_worst, report.start, report.global_, report.loss)
        self._pending.rounds.append(
            (
                report.round,
                *(finite_or_none(value) for value in figures),
                *(report.clip, report.cohort, report.rejected, report.bytes, report.seconds),
                *(finite_or_none(value) for value in report.epsilon.values()),
            )
        )
        self._pending.clients.extend(
            (report.round, int(client), *(finite_or_none(value) for value in values))
            for client, values in accuracies.items()
        )
        self.seconds += report.seconds
        self.uploaded += report.bytes
        self.received = None if self.received is None else self.received + report.received
        self.start = report.start

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that no checkpoint could keep."""
        check_keepable(state)

    def save(self, now: Restored, summary: Summary | None = None, models: KeptFile | None = None) -> None:
        """Make everything so far durable, in the order that a crash at any point leaves a consistent run.

        With the `models` of a finished run, clients' memory and the journal are needed no longer.
        """
        self._check_process()
        if models is not None:
            self._journal.check_settled()
        with saving(self._store.folder, self.folder):
            snapshot = None if self._memory is None else self._memory.commit()
            checkpoint = checkpoints.Checkpoint(
                round=now.rounds,
                questions=now.questions,
                server=now.state,
                averaged=now.averaged,
                over=now.over,
                memory=snapshot,
                received=self.received,
            )
            saved = checkpoints.save(checkpoint, self.folder / f"round-{now.rounds:06d}.safetensors")
            if models is None:
                self._journal = self._journal.following(len(self.ledger.rows), self.ledger.head)
            self._store.advance(
                self._run,
                now.rounds,
                saved,
                self.seconds,
                self._pending,
                None if summary is None else summary.to_dict(),
                models,
            )
            self._pending = Progress([], [], [])
            current = [] if snapshot is None else [snapshot.file]
            kept = [*current, self._journal.path.name] if models is None else [models.name]
            checkpoints.remove_leftovers(self.folder, saved.name, *kept)

    def close(self) -> None:
        """Close the files, unless they are another process's."""
        if os.getpid() == self._process:
            self._journal.close()

    def _check_process(self) -> None:
        """Refuse to go on in a process that was forked from the one that opened the files, which goes on as well."""
        if os.getpid() != self._process:
            raise UserError(
                f"Code of the run {self._run!r} has forked its process ({self._process}), and the new process "
                f"({os.getpid()}) goes on with the run. Nothing of it is kept. The first process may end the run; let "
                "code that calls os.fork end the new process with os._exit."
            )

    def _restore(self, file: KeptFile, seconds: float) -> None:
        """Read the last checkpoint, which earlier sessions of `seconds` came to."""
        found = checkpoints.load(file, self.folder)
        self._snapshot, self.received = found.memory, found.received
        self._referenced = [file.name] if found.memory is None else [file.name, found.memory.file]
        self.restored = Restored(found.server, found.round, found.questions, found.averaged, found.over)
        curve = self._store.curve(self._run)
        self.uploaded, self.seconds = sum(row["bytes"] for row in curve), seconds
        self.start = float("nan") if not curve or curve[-1]["start"] is None else curve[-1]["start"]
