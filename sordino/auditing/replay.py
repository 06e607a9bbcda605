"""Non-interference test (`ReplayPool`, `replay`): replay a recorded run with other client data, noised values pinned to
the recording, and report everything else that changes.

A replay runs in another world (`worlds`): clients hold other records, and where they are protected as a whole, other
numbers of them. What passed the mechanism comes out as it did, and so does what left bare, which costs infinity; the
script is handed what it had read, and nothing else. Then nothing that is seen depends on records: whom the script asks
and how often, what it tells them and what it ends with, what else clients send, how long their messages are, how much
noise is on them, and what clients remember of them must be the same, bit by bit. Whatever differs bypasses the noise.

Sums over all clients' records are hidden by coins that only a client knows, and by noise of which its own message has a
share. They are replayed with other coins too, which nothing but noised values may show, and with other shares in the
same sums: nothing that a client sends may depend on its own thinly noised messages.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sordino.assembly import assemble
from sordino.auditing.recorded_run import Recorded, simulate_alone
from sordino.auditing.recorder import RecordedRelease, noise_on_each, noise_under
from sordino.auditing.worlds import DRAWN_ANEW, OTHER_SHARES, WORLDS, worlds_of
from sordino.experiment.prepare import Prepared
from sordino.federation.client import Question
from sordino.federation.message import digest
from sordino.federation.run_state import TransientState
from sordino.federation.transcript import Exchange
from sordino.federation.transport import Answer, Transport
from sordino.method import Federation, Message, Method
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.gate import Gate, Passed
from sordino.privacy.mechanism import Mechanism, Purpose
from sordino.privacy.noise import Seeded, Source
from sordino.privacy.release import Cover, Public, Releases, due
from sordino.store.checkpoint import encode

SCRIPT, COHORT, NOISE, LENGTH, SENT, REMEMBERED, STEPS, FAILURE, OWN = (
    "hidden channel",
    "cohort",
    "data in the noise",
    "length",
    "without noise",
    "public state",
    "number of gradients",
    "failure",
    "own message",
)
"""Kinds of things that may turn out to depend on records."""


class HiddenChannelError(AssertionError):
    """A script goes on otherwise than it did: there is nothing left to compare."""


class FailureError(AssertionError):
    """A step failed: there is nothing left to compare."""


@dataclass
class Leaks:
    """Sentences on what turned out to depend on records: the first of each kind."""

    world: str
    """Description of what clients hold."""
    sentences: dict[str, str] = field(default_factory=dict)

    def tell(self, kind: str, sentence: str) -> None:
        self.sentences.setdefault(kind, sentence)


@dataclass(frozen=True)
class Recording:
    """Data that a replay needs of a recorded run: nothing that holds code, so that it can be sent to another
    process."""

    noise: Source
    exchanges: list[Exchange]
    passages: list[RecordedRelease]
    unpriced: frozenset[tuple[int, str]]
    """Question and release of what is charged infinity."""
    state: tuple[str, list[Tensor]]
    """State that the server ended with."""

    @classmethod
    def of(cls, recorded: Recorded) -> Recording:
        """Take what a replay needs from a recorded run."""
        rows = [row for row in recorded.ledger.rows if not row.exposed]
        bare = frozenset((row.question, row.release) for row in rows if np.isinf(row.costs()).all())
        exchanges = [replace(one, releases={}) for one in recorded.transcript.exchanges]
        return cls(recorded.source.of, exchanges, recorded.mechanism.passages, bare, encode(recorded.state))

    def with_releases(self, method: Method) -> Recording:
        """Fill in the releases of `method`, after the data were sent to another process."""
        steps = method.steps()
        asked = [(one, one.question) for one in self.exchanges]
        return replace(self, exchanges=[replace(one, releases=due(steps[q.step], q.round)) for one, q in asked])


class ReplayPool:
    """Processes forked before any step was run, one for each world, each of which replays once. What steps leave
    behind in the process that records the run, or in another world, does not reach them."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._team: list[tuple[Any, Connection]] = []
        for world in worlds_of(prepared.method) if hasattr(os, "fork") else ():
            here, there = multiprocessing.Pipe()
            others = [here, *(pipe for _, pipe in self._team)]
            process: Any = multiprocessing.get_context("fork").Process(
                target=_play, args=(prepared, world, there, others), daemon=True
            )
            process.start()
            there.close()
            self._team.append((process, here))

    def replay(self, recorded: Recorded) -> dict[str, str]:
        """Replay a run in all worlds: sentences by kind on what depends on records besides what noise covers; empty
        where nothing does."""
        recording = Recording.of(recorded)
        found: dict[str, str] = {}
        if not self._team:
            whole = recording.with_releases(self._prepared.method)
            leaks = [replay(self._prepared, world, whole) for world in worlds_of(self._prepared.method)]
            return {kind: sentence for one in reversed(leaks) for kind, sentence in one.items()}
        packed = pickle.dumps(recording)
        for _, pipe in reversed(self._team):  # what the first world tells stays
            pipe.send_bytes(packed)
            found |= pickle.loads(pipe.recv_bytes())
        return found

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._team:
            pipe.close()
            process.join()


def _play(prepared: Prepared, world: str, pipe: Connection, others: Sequence[Connection]) -> None:
    """Main function of a forked process. Threads are not forked along: a torch that waited for them would wait for
    ever."""
    for other in others:
        other.close()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):  # nobody wanted a replay
        recording: Recording = pickle.loads(pipe.recv_bytes())
        pipe.send_bytes(pickle.dumps(replay(prepared, world, recording.with_releases(prepared.method))))


def replay(prepared: Prepared, world: str, recording: Recording) -> dict[str, str]:
    """Replay a run in one world: sentences by kind on everything besides noised values that changes; computed in this
    process.

    Args:
        prepared: the experiment that was recorded.
        world: description of the world, one of `worlds_of`.
        recording: what is needed of the recorded run.
    """
    leaks, change = Leaks(world), WORLDS[prepared.method.unit].get(world)
    prepared = prepared if change is None else replace(prepared, data=change(prepared.data))
    mechanism = ReplayedMechanism(prepared.mechanism, leaks, recording.passages)
    exchanges = {one.question.number: one for one in recording.exchanges}
    gate = ReplayedGate(
        prepared.allowance,
        _source(recording.noise, world),
        mechanism,
        leaks=leaks,
        exchanges=exchanges,
        unpriced=recording.unpriced,
    )
    with simulate_alone(prepared, gate) as transport:
        script = ReplayedServer(prepared, recording, gate, transport, leaks)
        try:
            prepared.method.run(cast(Federation, script), prepared.initial)
            script.compare_end()
        except FailureError as found:
            leaks.tell(FAILURE, f"{found}")
        except HiddenChannelError as found:
            leaks.tell(SCRIPT, f"the script knows more than it was handed out: {found}")
        except Exception as error:  # whatever the script stumbles over when only what it read is there
            why = f"{type(error).__name__}: {error}"
            leaks.tell(SCRIPT, f"the run cannot be repeated with {leaks.world} from what was read ({why})")
        else:
            mechanism.compare_end()
    return leaks.sentences


def _source(recorded: Source, world: str) -> Source:
    """Randomness of a world, where coins or noise may be others than the `recorded` ones."""
    if world not in DRAWN_ANEW:
        return recorded
    assert isinstance(recorded, Seeded)
    return OtherSource(recorded, replace(recorded, identity=f"{world} than {recorded.identity}"), DRAWN_ANEW[world])


@dataclass
class OtherSource:
    """Source of which some kinds of draws, such as its coins, are those of another one."""

    of: Source
    other: Source
    others: Sequence[str]
    """Names of the functions that draw from `other`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.other if name in self.others else self.of, name)


@dataclass
class ReplayedMechanism:
    """Mechanism that compares the noise and the bounds it is asked for with the recorded ones, and returns sums of
    gradients as recorded, whatever it is given. `ReplayedGate` puts in the other recorded values."""

    of: Mechanism
    leaks: Leaks
    passages: Sequence[RecordedRelease]
    taken: set[tuple[object, ...]] = field(default_factory=set)
    repeats: bool = True
    """Whether the first question came to the recorded values: a step with randomness of its own does not repeat
    itself."""

    def __post_init__(self) -> None:
        self._first = min((one.purpose[0] for one in self.passages if one.purpose[0] != "gradient"), default=0)
        self._known = {(*one.purpose, one.client, one.number): one for one in self.passages}

    def check(self, cover: Cover) -> None:
        self.of.check(cover)

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        for place, client in enumerate(clients):
            passage = self._passage((*purpose, client, 0))
            noise, bound, _ = noise_under(cover, place, rows.shape[1])
            if passage is not None and not (same_bits(noise, passage.deviations) and bound == passage.bound):
                self.leaks.tell(NOISE, f"with {self.leaks.world} {purpose[-1]} has other noise or another bound")
            if self.leaks.world == OTHER_SHARES and passage is not None:
                self._compare(purpose, rows[place].cpu(), passage)
        return self.of.noised(rows, cover, source, purpose, clients)

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        passage = self._passage(tuple(purpose))
        if passage is None:
            return self.of.noised_sum(total, deviation, source, purpose)
        if not same_bits(passage.deviations, noise_on_each(deviation, total.numel())):
            self.leaks.tell(NOISE, f"with {self.leaks.world} a gradient has other noise")
        return passage.after.reshape(total.shape).to(total, copy=True)  # whoever takes it divides it in place

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        every = zip(totals, deviations, purposes, strict=True)
        return torch.stack([self.noised_sum(total, deviation, source, purpose) for total, deviation, purpose in every])

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.read(rows, cover)

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.mean(rows, cover)

    def _compare(self, purpose: Purpose, row: Tensor, passage: RecordedRelease) -> None:
        """Tell of a message that depends on the noise of its client's earlier ones."""
        same = same_bits(row, passage.before)
        if purpose[0] == self._first:
            self.repeats = self.repeats and same
        elif self.repeats and not same:
            self.leaks.tell(OWN, f"{purpose[-1]} depends on its client's own earlier messages, not on their sum alone")

    def compare_end(self) -> None:
        """Tell of what passed before, and did not with other records."""
        left = self._known.keys() - self.taken
        if left:
            self.leaks.tell(STEPS, f"with {self.leaks.world} {len(left)} noisy values fewer leave the mechanism")

    def _passage(self, key: tuple[object, ...]) -> RecordedRelease | None:
        self.taken.add(key)
        if key not in self._known:
            self.leaks.tell(STEPS, f"with {self.leaks.world} more noisy values leave the mechanism")
        return self._known.get(key)


@dataclass(frozen=True)
class ReplayedGate(Gate):
    """Gate that returns the recorded values; values that have no noise and are not charged infinity must equal them."""

    leaks: Leaks = field(kw_only=True)
    exchanges: Mapping[int, Exchange] = field(kw_only=True)
    """Recorded exchanges by the number of their question."""
    unpriced: Collection[tuple[int, str]] = field(kw_only=True)

    def passes(self, releases: Releases, wanted: Mapping[str, Any], question: int, public: Public) -> Passed:
        passed = super().passes(releases, wanted, question, public)
        exchange = self.exchanges[question]
        places = [list(exchange.public.clients).index(client) for client in public.clients]
        values = {}
        for name, rows in passed.values.items():
            before = exchange.answer.values[name][places]
            if rows.shape != before.shape or rows.dtype != before.dtype:
                self.leaks.tell(LENGTH, f"with {self.leaks.world} {name} has another length")
            elif not self._hidden(releases, name, question, rows, public) and not same_bits(rows.cpu(), before):
                what = self.leaks.world if self.leaks.world in DRAWN_ANEW else "records"
                self.leaks.tell(SENT, f"{name} depends on {what}, has no noise, and costs less than infinity")
            values[name] = rows if self.leaks.world == OTHER_SHARES else before.to(rows.device)
        return replace(passed, values=values)

    def _hidden(self, releases: Releases, name: str, question: int, rows: Tensor, public: Public) -> bool:
        """Whether noise of its own hides a release, or nobody says that anything does."""
        return (question, name) in self.unpriced or self._cover(releases[name], rows.shape[1], public) is not None


class ReplayedServer:
    """The federation once more: the script is handed what it had read, while clients answer with other records.

    Everything but `ask` is a server's, whose own transport leads nowhere.
    """

    def __init__(
        self, prepared: Prepared, recording: Recording, gate: Gate, transport: Transport, leaks: Leaks
    ) -> None:
        state = TransientState(prepared.ledger())
        self._server = assemble(prepared, _NoTransport(), state, gate=gate, ground=prepared.ground, evaluate=False)
        self._allowance = gate.allowance
        self._before, self._clients, self._leaks = recording.state, transport, leaks
        self._left = list(recording.exchanges)
        self._ended: BaseException | None = None
        """Error that ended the replay, even if the script catches it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def ask(self, who: Sequence[int], step: Any, message: Message) -> Any:
        self._go_on()
        try:
            return self._asked(who, step, message)
        except BaseException as error:
            self._ended = error
            raise

    def _go_on(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _asked(self, who: Sequence[int], step: Any, message: Message) -> Any:
        asked = self._left.pop(0) if self._left else None
        name = getattr(step, "__name__", str(step))
        if asked is None or (asked.question.step, list(asked.question.clients)) != (name, [int(one) for one in who]):
            self._leaks.tell(COHORT, f"whom the script asks in {name} does not follow from what it has read")
            raise HiddenChannelError(f"whom it asks in {name} does not follow from what it has read")
        if digest(asked.question.message) != digest(message):
            raise HiddenChannelError(
                f"what it tells clients in round {asked.question.round + 1} does not follow from what it has read"
            )
        self._let_answer(asked)
        return _ReplayedReplies(asked, self._allowance)

    def compare_end(self) -> None:
        """Raise where the script ended earlier, or with something else."""
        self._go_on()
        if self._left:
            self._leaks.tell(COHORT, "how many questions the script asks does not follow from what it has read")
            raise HiddenChannelError(f"it ends {len(self._left)} questions earlier when it knows only what it has read")
        kept, before = encode(self._server.end().now.state), self._before
        if kept[0] != before[0] or any(not same_bits(*pair) for pair in zip(kept[1], before[1], strict=True)):
            raise HiddenChannelError("what it ends with does not follow from what it has read")

    def _let_answer(self, asked: Exchange) -> None:
        """Put the question to clients with other records, and compare what does not pass the gate."""
        states = self._clients.public_states(asked.question.clients, list(asked.public.states))
        if any(not same_bits(states[name], rows) for name, rows in asked.public.states.items()):
            self._leaks.tell(REMEMBERED, "what clients remember publicly does not follow from what they sent")
        try:
            answer = self._clients.ask(asked.question, False, lambda: None)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise FailureError(f"with {self._leaks.world} {asked.question.step} fails ({why})") from error
        if (answer.bytes, answer.kept, answer.who) != (asked.answer.bytes, asked.answer.kept, asked.answer.who):
            self._leaks.tell(
                LENGTH, f"with {self._leaks.world} {answer.bytes} bytes leave instead of {asked.answer.bytes}"
            )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    return one.shape == other.shape and one.dtype == other.dtype and _bits(one) == _bits(other)


def _bits(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True)
class _ReplayedReplies:
    """Replies that hand out once more what was read of an exchange."""

    _exchange: Exchange
    _allowance: Allowance

    @property
    def who(self) -> Sequence[int]:
        return self._exchange.public.clients

    def has(self, release: str) -> bool:
        return release in self._exchange.answer.values

    def mean(self, release: str) -> Tensor:
        return self._exchange.read[release, "mean"].clone()

    def rows(self, release: str) -> Tensor:
        return self._exchange.read[release, "rows"].clone()

    def deviation(self, release: str) -> Tensor:
        exchange = self._exchange
        return exchange.releases[release].deviation(self._allowance, exchange.public)


class _NoTransport:
    """A transport to no client."""

    memory: None = None

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        raise HiddenChannelError("it asks clients behind the federation's back")

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.full(len(clients), np.nan)
