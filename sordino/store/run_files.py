"""What is kept of a run: the ledger, rounds and checkpoints, so that a kill at any instant loses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino.errors import UserError
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.unit import Unit
from sordino.simulator.memory import Memory
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import check_keepable
from sordino.store.database import saving
from sordino.store.journal import Journal
from sordino.store.run_summary import Summary
from sordino.store.spending import Spent, spending_of_ledger, within
from sordino.store.store import Progress, Store
from sordino.util.files import KeptFile
from sordino.util.formatting import finite_or_none


class RunBooks:
    """The books of one run, opened at its start or where its last checkpoint left it."""

    def __init__(
        self,
        store: Store,
        run: str,
        identity: str,
        memory: Memory,
        unit: Unit,
        clients: int,
        limited: Spent | None = None,
        machine: str = "",
    ) -> None:
        """`limited` is what the run may spend at the most, where something depends on it; `machine` describes where
        values are computed, and is empty where sites do that."""
        self._limited = limited
        self._store, self._run, self._memory, self._folder = store, run, memory, store.path(run)
        self._pending = Progress([], [], [])
        self.restored: Restored | None = None
        self.seconds = 0.0
        """Time spent in rounds, over all sessions of the run."""
        self.uploaded = 0
        """Bytes that left all clients."""
        self.start = float("nan")
        """The accuracy at the start of the last round."""
        row = store.get(run)
        self.deal: str | None = (row.planned or {}).get("deal")
        """Digest of which record stands with which client; None where that is not known."""
        if row.identity != identity:
            raise UserError(
                f"The run {run!r} was started with another experiment, other data, another version of Sordino, other "
                "code of its method or network or other weights of its network than what is found now."
            )
        rows: list[Row] = []
        if row.checkpoint is not None:
            store.check(run)
            rows = store.ledger(run)
            self._take_up(checkpoints.load(row.checkpoint, self._folder), row.checkpoint, row.seconds)
        else:
            checkpoints.remove_leftovers(self._folder, memory.path.name, *self._needed())
        self.ledger = Ledger(clients, unit, rows)
        self._journal = Journal(self._folder, len(rows), self.ledger.head, row.begun, machine)
        for spent, link in self._journal.given_up:
            self._pending.ledger.append((len(self.ledger.rows), spent, link))
            self.ledger.append(spent)
        if not row.begun:  # only now that it is there
            store.begin(run)

    def charge(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._limited is not None and not within(spending_of_ledger(self.ledger), self._limited):
            raise UserError(
                f"{rows[0].step} of round {rows[0].round + 1} would cost more than the whole run was going to, by "
                "which budget_over_runs is kept: the method asks more often, or reads more of single messages, than "
                "its declarations say, or the run was resumed on another kind of machine and asks again. Nothing was "
                "asked; run it without budget_over_runs to see what it comes to."
            )
        links = self.ledger.links[-len(rows) :]
        with saving(self._store.folder):
            self._journal.write(rows, links)
        position = len(self.ledger.rows) - len(rows)
        self._pending.ledger.extend((position + place, row, links[place]) for place, row in enumerate(rows))

    def answered(self, question: int, drawn: int) -> None:
        """Store the digest of an answer's noise before anybody sees the answer. A resumed run with another digest does
        not go on."""
        if drawn:
            with saving(self._store.folder):
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
        self.start = report.start

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that no checkpoint could keep."""
        check_keepable(state)

    def save(self, now: Restored, summary: Summary | None = None, models: KeptFile | None = None) -> None:
        """Make everything so far durable, in the order that a crash at any point leaves a consistent run.

        With the models the clients' memory and the journal are needed no longer.
        """
        memory = self._memory
        if models is not None:
            self._journal.check_settled()
        with saving(self._store.folder):
            memory.commit()
            checkpoint = checkpoints.Checkpoint(
                round=now.rounds,
                questions=now.questions,
                server=now.state,
                averaged=now.averaged,
                over=now.over,
                memory=memory.path.name,
                slots=memory.slots,
                participations=memory.participations,
                checksums=memory.checksums,
            )
            saved = checkpoints.save(checkpoint, self._folder / f"round-{now.rounds:06d}.safetensors")
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
            kept = [memory.path.name, self._journal.path.name] if models is None else [models.name]
            checkpoints.remove_leftovers(self._folder, saved.name, *kept)

    def close(self) -> None:
        """Close the files."""
        self._journal.close()

    def _take_up(self, found: checkpoints.Checkpoint, file: KeptFile, seconds: float) -> None:
        """Take over what a killed session of the run left behind."""
        memory = self._memory
        checkpoints.remove_leftovers(self._folder, file.name, found.memory, memory.path.name, *self._needed())
        memory.take_over(self._folder / found.memory, found.slots, found.participations, found.checksums)
        self.restored = Restored(found.server, found.round, found.questions, found.averaged, found.over)
        curve = self._store.curve(self._run)
        self.uploaded, self.seconds = sum(row["bytes"] for row in curve), seconds
        self.start = float("nan") if not curve or curve[-1]["start"] is None else curve[-1]["start"]

    def _needed(self) -> list[str]:
        """The files of an earlier session that are read later than its checkpoint: journals and blended models."""
        return [path.name for pattern in ("ledger-*", "blend-*") for path in self._folder.glob(pattern)]
