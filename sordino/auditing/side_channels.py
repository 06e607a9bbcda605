"""Tier 3 of an audit, side channels: does anything but the noisy values themselves tell whether a client was there?

The client that has paid most is copied many times: every copy has its records, answers the recorded questions through
the production client and gate, and has noise of its own. Half of the copies send what such a client may send at the
worst, the others nothing (where records are protected: half hold a record in whose place nothing stands at the others).
Of every release, in every round, something is looked at that its noise is not made to hide: how large the message's
entries are (a threshold that shows in the noise), which entries are zero (a support or mask), its single entries where
they are few (metrics), its length. A first part of the copies decides what tells most; the rest are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.auditing import client_canaries, record_canaries
from sordino.auditing.bounds import Guesses
from sordino.auditing.findings import SAID, SURE, Attack
from sordino.auditing.recorded_run import Recorded, other_noise
from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.data.persons import collect
from sordino.federation.client import Clients
from sordino.federation.execution import EXECUTIONS, stack_size
from sordino.federation.message import Each
from sordino.federation.transcript import Exchange
from sordino.method import Method
from sordino.privacy.gate import Gate
from sordino.privacy.release import Releases, all_releases
from sordino.privacy.views import VIEWS, View
from sordino.testing.case import with_steps
from sordino.util.processes import single_threaded

PILOT, MAX_FIELDS = 0.3, 4
"""Share of copies that decides what is looked at, and the most fields that are."""
COIN = "a canary's coin"
"""Key of a message under which a copy learns whether it is the canary: only the audit's own steps read it."""
LOUD_ENTRY = 1e6
"""An entry that no threshold lets pass as it is."""
MAX_SINGLE_ENTRIES = 8
"""Most entries of a message that are looked at one by one."""
SIZE = "size of the entries"
NUDGE = 1.25
"""Factor by which thresholds are larger that shall show in the noise."""
MAX_QUESTIONS = 6
"""Most recorded questions that the copies answer."""


@dataclass(frozen=True)
class Field:
    """One thing that can be looked at: a number for each copy."""

    name: str
    release: str
    exchange: int
    values: np.ndarray


def attacks(recorded: Recorded, copies: int, number: int = 3, risk: float = 1 - SURE) -> list[Attack]:
    """Attack by the fields on the wire, for each observer that sees them.

    Args:
        recorded: the run whose questions are put to copies of one client.
        copies: number of copies, half of them canaries.
        number: sets the noise of this attack apart from others.
        risk: probability that any claim is refuted by chance.
    """
    of_records = recorded.method.unit.record_level
    target = record_canaries.target_of(recorded) if of_records else client_canaries.target_of(recorded)
    exchanges = recorded.exchanges_of(target)[:MAX_QUESTIONS]
    coins, delta = np.arange(copies) % 2 == 0, recorded.prepared.budget.delta
    ways = [("side channel", 1.0)]
    if follows_data(recorded, exchanges):
        ways.append((f"thresholds {NUDGE - 1:.0%} apart, in the noise", NUDGE))
    found = []
    for way, nudge in ways:
        fields = list(_fields(recorded, target, exchanges, coins, number, nudge))
        fields = fields if nudge == 1 else [one for one in fields if one.name.startswith(SIZE)]
        for view in VIEWS:
            mine = [one for one in fields if exchanges[one.exchange].sees(one.release, view) == "rows"]
            if mine:
                found.append(_best_attack(way, mine, coins, view, delta, risk / len(VIEWS) / len(ways)))
    return found


def follows_data(recorded: Recorded, exchanges: list[Exchange]) -> bool:
    """Whether clients have thresholds of their own, at a method whose clients send something without noise: what
    thresholds follow from may then be raw data, and the size of the noise tells of them."""
    bare = any(not release.private for step in recorded.method.steps().values() for release in step.values())
    return bare and any(_thresholds(exchange) for exchange in exchanges)


def _thresholds(exchange: Exchange) -> set[str]:
    """The names of the thresholds that each client has of its own."""
    named = {getattr(release, "clip", None) for release in exchange.releases.values()}
    return {key for key, value in exchange.question.message.items() if key in named and isinstance(value, Each)}


def _best_attack(way: str, fields: list[Field], coins: np.ndarray, view: View, delta: float, risk: float) -> Attack:
    """The attack by those fields that told most on the first copies, counted on the others."""
    first = int(PILOT * len(coins))
    ranked = sorted(
        ((_separation(f.values[:first], coins[:first]), place) for place, f in enumerate(fields)), reverse=True
    )
    best = Attack(way, view, 0.0, 0.0)
    chosen = ranked[:MAX_FIELDS]
    for _, place in chosen:
        field = fields[place]
        guesses = _count_guesses(field.values, coins, first)
        said = guesses.model_free(delta, 1 - (1 - SAID) / len(chosen))
        if said > best.bound:
            surely = guesses.model_free(delta, 1 - risk / len(chosen))
            best = Attack(f"{way}: {field.name}", view, said, surely, said)
    return best


def _separation(values: np.ndarray, coins: np.ndarray) -> float:
    """Distance of the canaries' values from the others': the best balanced accuracy of a threshold, less one half."""
    return abs(_split(values, coins)[2] - 0.5)


def _split(values: np.ndarray, coins: np.ndarray) -> tuple[float, float, float]:
    """A threshold, the side on which canaries lie (1 or -1), and the accuracy there."""
    best = (0.0, 1.0, 0.5)
    steps = np.unique(values)
    middles = (steps[1:] + steps[:-1]) / 2 if len(steps) > 1 else steps
    for threshold in middles[:: max(1, len(middles) // 50)]:
        above = values > threshold
        accuracy = (above[coins].mean() + (~above[~coins]).mean()) / 2
        for side, right in ((1.0, accuracy), (-1.0, 1 - accuracy)):
            if right > best[2]:
                best = (float(threshold), side, float(right))
    return best


def _count_guesses(values: np.ndarray, coins: np.ndarray, first: int) -> Guesses:
    """Count the guesses of the test that the `first` copies chose, on the others."""
    threshold, side, _ = _split(values[:first], coins[:first])
    rest, there = side * values[first:], coins[first:]
    return Guesses.of(rest[there], rest[~there], side * threshold)


def _fields(
    recorded: Recorded, target: int, exchanges: list[Exchange], coins: np.ndarray, number: int, nudge: float
) -> Iterator[Field]:
    """Everything that can be looked at of what the copies send. With a `nudge` all copies hold the same records, and
    the thresholds of half of them are that many times as large."""
    copies = _Copies(recorded, target, coins if nudge == 1 else np.zeros_like(coins), number)
    factors = torch.from_numpy(np.where(coins, nudge, 1.0).astype(np.float32))
    with single_threaded():
        for place, exchange in enumerate(exchanges):
            sent, lengths = copies.answer(exchange, factors)
            for name, rows in sent.items():
                yield from _of_rows(name, place, rows.double().numpy())
                yield Field(f"length of the message in round {place + 1}", name, place, lengths)


class _Copies:
    """Copies of one client, as one process works for them."""

    def __init__(self, recorded: Recorded, target: int, coins: np.ndarray, number: int) -> None:
        prepared, count = recorded.prepared, len(coins)
        of_records = prepared.method.unit.record_level
        method = prepared.method if of_records else _with_coins(prepared.method)
        allowance = recorded.gate.allowance
        if of_records:
            allowance = replace(allowance, records=allowance.of_records.repeated(target, count))
        gate = Gate(allowance, other_noise(prepared, number), recorded.mechanism.of)
        # What is not finite contributes nothing, but a step that sees bare records could not compute with it.
        bare = any(not release.private for release in all_releases(prepared.method.steps()))
        emptied = (0.0 if bare else math.nan) if of_records else None
        data = _copies(prepared.data, target, coins, emptied)
        self._clients = Clients(
            method, prepared.learner, data, gate, recorded.clients.execution, prepared.experiment.device
        )
        self._coins = None if of_records else Each(torch.from_numpy(coins.astype(np.float32)).reshape(-1, 1))
        self._target, self._count = target, count
        self._together = stack_size(prepared.learner.layout.size)
        self._sides = [np.flatnonzero(side) for side in (coins, ~coins) if side.any()]
        blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, prepared.learner.layout)
        self._me = {name: value.float().expand(count, *value.shape).clone() for name, value in blank.items()}
        self._me["participations"] = torch.zeros(count)

    def answer(self, exchange: Exchange, factors: Tensor) -> tuple[dict[str, Tensor], np.ndarray]:
        """Answer a recorded question with all copies: their rows by release, and the bytes of each. Their own
        thresholds are multiplied by `factors`."""
        message = {
            key: copy_value(value, self._target, self._count) for key, value in exchange.question.message.items()
        }
        for key in _thresholds(exchange):
            rows = message[key].values
            message[key] = Each(rows * factors.reshape(-1, *[1] * (rows.dim() - 1)))
        message |= {} if self._coins is None else {COIN: self._coins}
        outcomes, groups = [], self._groups(exchange.question.step)
        for some in groups:
            asked = replace(exchange.question, message=message, clients=some)
            outcomes.append(self._clients.answer(asked, {name: rows[some] for name, rows in self._me.items()}))
        back = torch.from_numpy(np.argsort(np.concatenate(groups)))
        if outcomes[0].kept:
            kept = {name: torch.cat([one.kept[name].detach() for one in outcomes])[back] for name in outcomes[0].kept}
            taken = {"participations": self._me["participations"] + 1}
            self._me = {name: rows.reshape(self._me[name].shape) for name, rows in kept.items()} | taken
        passed = [one.passed for one in outcomes]
        sent = {name: torch.cat([one.values[name] for one in passed])[back] for name in passed[0].values}
        sizes = [one.bytes / len(some) for one, some in zip(passed, groups, strict=True)]
        return sent, np.repeat(sizes, [len(some) for some in groups])[back.numpy()]

    def _groups(self, step: str) -> list[list[int]]:
        """Copies that answer together, all of one side: the bytes of a group are then those of one side."""
        kinds = self._clients.kinds(step, np.arange(self._count), self._me["participations"].numpy())
        alone = self._clients.protects_records and self._clients.execution is EXECUTIONS["one-by-one"]
        together = self._together if (kinds == kinds[0]).all() and not alone else 1
        parts = [np.array_split(side, -(-len(side) // together)) for side in self._sides]
        return [group.tolist() for part in parts for group in part]


def _of_rows(release: str, exchange: int, rows: np.ndarray) -> Iterator[Field]:
    """Fields of one release's rows that can be looked at."""
    where = f"{release} in round {exchange + 1}"
    if rows.shape[1] <= MAX_SINGLE_ENTRIES:
        for entry in range(rows.shape[1]):
            yield Field(f"value of {where}", release, exchange, rows[:, entry])
        return
    zero = rows == 0
    squares = np.square(rows).sum(axis=1) / np.maximum(1, (~zero).sum(axis=1))
    yield Field(f"{SIZE} of {where}", release, exchange, squares)
    if zero.any():
        yield Field(f"number of zeros of {where}", release, exchange, zero.sum(axis=1).astype(float))
    yield Field(f"support of {where} at the canary", release, exchange, zero[:, 0].astype(float))


def _with_coins(method: Method) -> Method:
    """The method whose clients send what the coin says: the loudest message there may be, or nothing."""
    declared = method.steps()

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, message: Any, me: Any, data: Any) -> Any:
            coin = message[COIN].reshape(())
            rest = {key: value for key, value in message.items() if key != COIN}
            result = original(self, rest, me, data)
            sent = {n: _choose_message(declared[original.__name__], n, value, coin) for n, value in result.send.items()}
            return replace(result, send=sent)

        return step

    return with_steps(method, change, *declared)


def _choose_message(releases: Releases, name: str, value: Tensor, coin: Tensor) -> Tensor:
    """Message of a copy for one release."""
    release = releases[name]
    null = torch.full_like(value, release.centre())
    if not release.summed:
        return torch.where(coin > 0, value, null)
    loud = null.clone().reshape(-1)
    mask = torch.zeros_like(loud)
    mask[0] = LOUD_ENTRY
    return torch.where(coin > 0, (loud + mask).reshape(value.shape), null)


def _copies(data: FederatedData, target: int, coins: np.ndarray, emptied: float | None) -> FederatedData:
    """A federation of copies of one client; where records or persons are protected, the canary is the first one of half
    of them, and the others have `emptied` features in its place."""
    names = [f"copy-{number}" for number in range(len(coins))]
    test = data.test
    starts, sizes = (np.full(len(coins), one[target]) for one in (test.starts, test.sizes))
    tests = Split(test.x, test.y, starts, sizes)
    (x, y), persons = data.train.part(target), data.train.persons
    records, begins = len(y), np.zeros(len(coins), dtype=np.int64)
    if emptied is not None:
        rows = 1 if persons is None else int(persons.rows[persons.starts[target]])
        canary = 3 * torch.sign(x[:rows] + 1e-3) * x.abs().max()
        x, y = torch.cat([canary, x[rows:], torch.full_like(x[:rows], emptied), x[rows:]]), torch.cat([y, y])
        begins = np.where(coins, 0, records)
    train = Split(x, y, begins, np.full(len(coins), records))
    if persons is not None:
        codes = persons.codes(target)
        both = codes if emptied is None else np.append(codes, codes + len(persons.rows))
        known, count = collect(both, np.zeros(len(both), dtype=np.int64), 1, persons.rules), int(persons.counts[target])
        first = np.where(begins > 0, count, 0)
        train = replace(train, persons=replace(known, starts=first, counts=np.full(len(coins), count)))
    return replace(data, clients=Dealt(names, train, tests))


def copy_value(value: Any, target: int, copies: int) -> Any:
    """A value of a message as the copies receive it: what was the target's own is each copy's own."""
    if not isinstance(value, Each):
        return value
    return Each(value.values[target : target + 1].expand(copies, *value.values.shape[1:]))


def largest_refutable(copies: int) -> float:
    """The largest epsilon that so many copies can refute, if every guess is right."""
    tested = math.floor((1 - PILOT) * copies / 2)
    return Guesses(0, tested, 0, tested).model_free(0.0, 1 - (1 - SURE) / len(VIEWS) / MAX_FIELDS)
