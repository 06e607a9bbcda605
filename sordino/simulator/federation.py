"""The federation that a method's script talks to, simulated on one machine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data import Dataset
from sordino.errors import UserError
from sordino.files import KeptFile
from sordino.method import Budget, Message, Result, State
from sordino.privacy.gate import Noise
from sordino.privacy.ledger import Ledger, Row, View
from sordino.privacy.noise import Seeded
from sordino.privacy.records import RecordPlan
from sordino.privacy.release import Number, Public, Releases, Update, due
from sordino.simulator import checkpoint as checkpoints
from sordino.simulator.engine import Answer, Work
from sordino.simulator.server_state import check_keepable
from sordino.simulator.workers import Workers
from sordino.store import Progress, Store, saving
from sordino.training import Records

CHECKPOINT_SECONDS = 5.0
"""How much work a killed run may have to repeat."""


@dataclass(frozen=True)
class RoundReport:
    """What a round brought, for people who watch."""

    round: int
    rounds: int
    personal: float
    personal_worst: float
    start: float
    global_: float
    clip: float | None
    cohort: int
    rejected: int
    size: int
    seconds: float
    epsilon: dict[View, float]


class Replies:
    """What came back: bounded and noised rows, centred on zero."""

    def __init__(self, releases: Releases, answer: Answer, noise: Noise, public: Public) -> None:
        self._releases, self._values = releases, answer.values
        self._noise, self._public = noise, public

    def has(self, release: str) -> bool:
        return release in self._values

    def __getitem__(self, release: str) -> Tensor:
        return self._values[release] + self._releases[release].centre()

    def mean(self, release: str) -> Tensor:
        return self._values[release].mean(dim=0) + self._releases[release].centre()

    def deviation(self, release: str) -> Tensor:
        chosen, rows = self._releases[release], self._values[release]
        if not isinstance(chosen, Update | Number):
            return torch.zeros(1)
        deviations = chosen.deviations(self._noise.of_message(chosen), rows.shape[1], self._public)
        by_client = deviations.expand(len(rows), -1) if len(deviations) == 1 else deviations
        return by_client.square().sum(dim=0).sqrt().float()


class Simulator:
    """Clients on this machine. One instance makes one run, from its start or from its last checkpoint."""

    def __init__(
        self,
        *,
        store: Store,
        run: str,
        experiment: str,
        budget: Budget,
        workers: Workers,
        public: Dataset | None = None,
        evaluate_every: int = 1,
        watch: Callable[[RoundReport], None] | None = None,
    ) -> None:
        self._store, self._run, self._experiment = store, run, experiment
        self.budget, self.layout, self._public = budget, workers.engine.learner.layout, public
        self.features, self.classes = math.prod(workers.engine.data.shape), workers.engine.data.classes
        self._total, self._delta = budget.rounds, budget.delta
        self._workers, self._engine = workers, workers.engine
        self._evaluate_every, self._watch = evaluate_every, watch
        self._folder: Path = store.path(run)
        self._clients = len(self._engine.data.clients)
        plan = self._engine.gate.record_plan
        limits = None if plan is None else plan.turns
        self._turns = Turns(self._clients, budget.cohort, self._engine.gate.source, limits)
        self._last = self._turns.last(self._total)
        self.ledger = Ledger(self._clients)
        self._saved_rows = 0
        self._pending = Progress([], [], [])
        self._round = self._done = 0
        self._begun: float | None = None
        self._restored: dict[str, Any] | None = None
        self._seconds = 0.0
        self._asked: list[tuple[Sequence[int], Answer]] = []
        self._link = bytes(32)
        self._final = State()
        self.uploaded = 0
        self.last: RoundReport | None = None
        self.start = float("nan")
        """The accuracy at the start of the last round."""
        self._resume()

    def state(self, **initial: Any) -> State:
        self._final = State(**(initial if self._restored is None else self._restored))
        return self._final

    def rounds(self, state: State) -> Iterator[int]:
        self._leave()
        self._final, last_checkpoint = state, time.monotonic()
        for number in range(self._done, self._total):
            if not self._cohort(number):
                continue  # nobody has budget left for it
            self._round, self._asked, self._begun = number, [], time.monotonic()
            yield number
            self._end_round(self._begun)
            if number + 1 < self._total and time.monotonic() - last_checkpoint > CHECKPOINT_SECONDS:
                self._save(state)
                last_checkpoint = time.monotonic()

    def _leave(self) -> None:
        """End the round out of which the method broke, if there is one: it counts if anybody was asked in it."""
        if self._begun is not None and self._asked:
            self._end_round(self._begun)
        self._begun = None

    def _end_round(self, begin: float) -> None:
        self._close(self._final, time.monotonic() - begin)
        self._seconds += time.monotonic() - begin
        self._done, self._begun = self._round + 1, None

    @property
    def record_plan(self) -> RecordPlan:
        plan = self._engine.gate.record_plan
        if plan is None:
            raise ValueError("only record-level methods have a plan of what records pay")
        return plan

    def everyone(self) -> Sequence[int]:
        return range(self._clients)

    def sample(self) -> Sequence[int]:
        return self._cohort(self._round)

    def _cohort(self, number: int) -> list[int]:
        return [client for client in self._turns.of(number) if self._may_take_part(client)]

    def _may_take_part(self, client: int) -> bool:
        """A client whose records' budget would be exceeded stops taking part.

        Turns are dealt accordingly; a method that asks a client more often than once in its turn uses them up sooner.
        """
        plan = self._engine.gate.record_plan
        return plan is None or int(self._engine.memory.participations[client]) < int(plan.turns[client])

    def public(self) -> Records:
        if self._public is None:
            raise UserError("There are no public records: name some with the key `public`.")
        seed = self._engine.gate.source.key("public") >> 32
        return Records(self._public.x, self._public.y, self._engine.learner, seed)

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        name = step.__name__
        releases = due(self._engine.steps[name], self._round)
        noise = self._engine.gate.noise
        summed = any(isinstance(release, Update | Number) for release in releases.values())
        if summed and len(who) < noise.minimum_cohort:
            raise UserError(
                f"Round {self._round + 1} has {len(who)} clients, but the noise is shared out over at least "
                f"{noise.minimum_cohort}: the round is given up before anything is used."
            )
        bounds = {release.clip for release in releases.values() if isinstance(release, Update)}
        states = self._engine.public_states(who, {name for name in bounds if isinstance(name, str)})
        public = Public(message, states, self._engine.layers)
        self.ledger.charge(releases, who, name, self._round, public, noise, self._engine.gate.record_plan)
        targets = self._engine.memory.targets(who)
        work = Work(name, self._round, message, who, targets, self._evaluates())
        with saving(self._store.folder):
            answer = self._workers.work(work)
        if answer.kept:  # a question that leaves nothing behind is no participation
            self._engine.memory.advance(who, targets)
        self._asked.append((who, answer))
        return Replies(releases, answer, noise, public)

    def judge(self, model: Tensor) -> tuple[float, float]:
        if self._public is None:
            raise UserError(
                "This method judges models on public records, and there are none: name some with the key `public`."
            )
        return self._engine.learner.loss_and_accuracy(model, self._public.x, self._public.y)

    def random(self, *purpose: object) -> torch.Generator:
        return self._engine.gate.source.generator("server", self._round, *purpose)

    def finish(self, summarize: Callable[[np.ndarray, np.ndarray | None], dict[str, Any]]) -> dict[str, Any]:
        """Evaluate every client once more, and write the summary that `summarize` makes of it."""
        self._leave()
        self._note_charges()
        everyone = range(self._clients)
        shared = self._shared_accuracies(everyone, self._final)
        personal = self._workers.accuracies(everyone, None)
        if shared is not None:  # a client that never took part predicts with the global model
            personal = np.where(np.isnan(personal), shared, personal)
        summary = summarize(personal, shared)
        models = self._save_models()
        with contextlib.suppress(UserError):  # pictures are extra, and need matplotlib
            self._engine.method.pictures(self._final, self._folder)
        self._save(self._final, summary, models)
        return summary

    @property
    def rounds_done(self) -> int:
        """The number of the last round that took place, counted from one."""
        return self._done

    def stopped(self) -> dict[int, int]:
        """Clients whose budget did not pay for their next turn, and after which round; zero: they never took part."""
        return self._turns.stopped()

    def never_asked(self) -> list[int]:
        """Clients that never took part."""
        absent: list[int] = np.flatnonzero(self._engine.memory.participations == 0).tolist()
        return absent

    @property
    def seconds(self) -> float:
        """Time spent in rounds, over all sessions of the run."""
        return self._seconds

    def _evaluates(self) -> bool:
        return (self._round + 1) % self._evaluate_every == 0 or self._round == self._last

    def _close(self, state: State, seconds: float) -> None:
        """Evaluate and note down the round that has just ended."""
        if self.last is None:  # early enough to lose no more than one round
            check_keepable(state.__dict__)
        personal, start, shared = float("nan"), float("nan"), float("nan")
        worst = float("nan")
        trained = [(asked, answer) for asked, answer in self._asked if answer.kept]
        who = [client for asked, _ in trained for client in asked]
        if self._evaluates() and who:
            columns = np.concatenate([answer.accuracies for _, answer in trained])
            found = self._shared_accuracies(who, state)
            after = np.full(len(who), np.nan) if found is None else found
            personal, start, shared = mean(columns[:, 0]), mean(columns[:, 1]), mean(after)
            worst = float(np.nanmin(columns[:, 0])) if np.isfinite(columns[:, 0]).any() else float("nan")
            rows = zip(who, columns, after, strict=True)
            known = {int(client): (none(own), none(begun), none(whole)) for client, (own, begun), whole in rows}
            # A client that was asked twice has one row: how it was in the end.
            self._pending.clients.extend((self._round, client, *values) for client, values in known.items())
        self._note_charges()
        rejected = sum(answer.rejected for _, answer in trained)
        size = sum(answer.size for _, answer in self._asked)
        self.uploaded += size
        self.start = start
        clip = overall(state.__dict__.get("threshold"))
        epsilon = self.ledger.epsilon(self._delta, quick=True)
        self.last = RoundReport(
            *(self._round, self._total, personal, worst, start, shared, clip, len(who), rejected, size, seconds),
            epsilon,
        )
        self._pending.rounds.append(
            (
                self._round,
                *(none(value) for value in (personal, worst, start, shared)),
                *(clip, len(who), rejected, size, seconds),
                *(none(value) for value in epsilon.values()),
            )
        )
        if self._watch is not None:
            self._watch(self.last)

    def _note_charges(self) -> None:
        """Let the next checkpoint take the ledger's new rows along."""
        for position in range(self._saved_rows + len(self._pending.ledger), len(self.ledger.rows)):
            row = self.ledger.rows[position]
            self._link = row.link(self._link)
            self._pending.ledger.append((position, row, self._link))

    def _shared_accuracies(self, clients: Sequence[int], state: State) -> np.ndarray | None:
        """The accuracy of the server's model for each client; None where the server has none."""
        served = self._engine.method.shared_models(state, self._clients)
        if served is None:
            return None
        models, number = served
        found = np.full(len(clients), np.nan)
        mine = number[torch.as_tensor(list(clients), dtype=torch.int64)].numpy()
        for group in np.unique(mine):
            places = np.flatnonzero(mine == group)
            found[places] = self._workers.accuracies([clients[int(place)] for place in places], models[int(group)])
        return found

    def _save(self, state: State, summary: dict[str, Any] | None = None, models: KeptFile | None = None) -> None:
        """Make everything so far durable, in the order that a crash at any point leaves a consistent run.

        With the models the clients' memory is needed no longer.
        """
        done = self._done
        memory = self._engine.memory
        with saving(self._store.folder):
            memory.commit()
            saved = checkpoints.save(
                checkpoints.Checkpoint(
                    done, state.__dict__, memory.path.name, memory.slots, memory.participations, memory.checksums
                ),
                self._folder / f"round-{done:06d}.safetensors",
            )
            self._store.advance(self._run, done, saved, self._seconds, self._pending, summary, models)
            checkpoints.remove_leftovers(self._folder, saved.name, models.name if models else memory.path.name)
        self._saved_rows = len(self.ledger.rows)
        self._pending = Progress([], [], [])

    def _save_models(self) -> KeptFile:
        """Write the trained models: `personal` with one row for each of `clients`, and the server's `global`.

        A server with several models has one row for each, and `clusters` says which is whose.
        """
        memory = self._engine.memory
        who: list[int] = np.flatnonzero(memory.participations).tolist()
        tensors = {"clients": torch.tensor(who, dtype=torch.int64)}
        served = self._engine.method.shared_models(self._final, self._clients)
        if served is not None:
            models, clusters = served
            tensors |= {"global": models[0].clone()} if len(models) == 1 else {"global": models, "clusters": clusters}
        size = self._engine.stack
        personal = (memory.states(who[begin : begin + size])["model"] for begin in range(0, len(who), size))
        with saving(self._store.folder):
            return checkpoints.write_models(
                tensors, memory.blank["model"].numel(), personal, self._folder / checkpoints.MODELS
            )

    def _resume(self) -> None:
        """Take up the run where its last checkpoint left it."""
        row = self._store.get(self._run)
        if row.experiment != self._experiment:
            raise UserError(
                f"The run {self._run!r} was started with another experiment or other data than what is found now."
            )
        memory = self._engine.memory
        if row.checkpoint is None:
            checkpoints.remove_leftovers(self._folder, memory.path.name)
            return
        self._store.check(self._run)
        found = checkpoints.load(row.checkpoint, self._folder)
        checkpoints.remove_leftovers(self._folder, row.checkpoint.name, found.memory, memory.path.name)
        memory.take_over(self._folder / found.memory, found.slots, found.participations, found.checksums)
        curve = self._store.curve(self._run)
        self.uploaded = sum(row["bytes"] for row in curve)
        self.start = float("nan") if not curve or curve[-1]["start"] is None else curve[-1]["start"]
        self._restored, self._round, self._seconds = found.server, found.round, row.seconds
        self._done = found.round
        rows: list[Row] = self._store.ledger(self._run)
        self.ledger = Ledger(self._clients, rows)
        self._saved_rows, self._link = len(rows), self.ledger.head


class Turns:
    """Whose turn it is: everybody once, in random order, before anybody's second time.

    No client thus takes part more often than ceil(rounds x cohort / clients) times, whatever the seed; the
    schedule never looks at data. Clients may have limits of their own: the turns of those who have reached theirs go to
    the others, and a cohort is smaller, or empty, only where there are not enough others left.
    """

    def __init__(self, clients: int, cohort: int, source: Seeded, limits: np.ndarray | None = None) -> None:
        """`limits` says how often each client may take part at the most: public, as the whole schedule is."""
        self._clients, self._cohort, self._source, self._limits = clients, cohort, source, limits
        self._begin()

    def of(self, number: int) -> list[int]:
        """The clients of a round, in ascending order."""
        if number < self._number:
            self._begin()
        while self._number < number:
            self._advance()
        return self._taken

    def last(self, rounds: int) -> int:
        """The last of so many rounds in which anybody has a turn."""
        if self._limits is None:
            return rounds - 1
        return max((number for number in range(rounds) if self.of(number)), default=0)

    def stopped(self) -> dict[int, int]:
        """Who has been passed over by now, and after how many rounds; zero for a client that never had a turn."""
        if self._limits is None:
            return {}
        return {int(client): int(self._latest[client]) + 1 for client in np.flatnonzero(self._limits < self._passes)}

    def _begin(self) -> None:
        self._number, self._passes, self._place = -1, 0, 0
        self._order = np.empty(0, dtype=np.int64)
        self._taken: list[int] = []
        self._latest = np.full(self._clients, -1)

    def _advance(self) -> None:
        self._number += 1
        taken = self._order[self._place : self._place + self._cohort]
        self._place += len(taken)
        missing = self._cohort - len(taken)
        if missing:
            order = self._next_pass()
            again = np.isin(order, taken)  # they wait at the end of the new pass, so that nobody is asked twice
            self._order, self._place = np.concatenate([order[~again], order[again]]), min(missing, int((~again).sum()))
            taken = np.concatenate([taken, self._order[: self._place]])
        self._latest[taken] = self._number
        self._taken = np.sort(taken).tolist()

    def _next_pass(self) -> np.ndarray:
        """Everybody who may take part once more, in random order."""
        self._passes += 1
        order = np.random.default_rng(self._source.key("turns", self._passes)).permutation(self._clients)
        return order if self._limits is None else order[self._limits[order] >= self._passes]


def mean(values: np.ndarray) -> float:
    """The mean of the finite values; `nan` when there is none."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def overall(threshold: Mapping[str, Any] | None) -> float | None:
    """The clipping threshold of the next round, all layers together, for people who watch."""
    if threshold is None:
        return None
    return float(torch.as_tensor(threshold["clip"], dtype=torch.float64).norm())


def none(value: float) -> float | None:
    """`nan` and infinity as None, for databases and JSON."""
    return float(value) if np.isfinite(value) else None
