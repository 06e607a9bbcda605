"""Tier 2: canaries in one real run, by what one run tells of all of them together.

Where whole clients are protected, canaries join a real training run: each has a direction of its own, as long as a
client's message may be, and is in all rounds or in none by a secret coin. They are bounded as a client's message is and
added to what the cohort sends, without noise of their own: whoever sees the sum meets each of them behind the cohort's
noise, as it meets a client. Where records are protected, canaries are records of one client. Nobody's budget is spent:
the run is thrown away.

Scores of canaries are bounded in three ways: Steinke et al. 2023 (any mechanism, any dependence), the one-run bound for
Gaussian curves (Mahloujifar et al. 2024) and, as an estimate, the difference of the means (Andrew et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.client import Question
from sordino.data.dataset import ClientData
from sordino.experiment.prepare import Prepared
from sordino.learning.records import Batch, cross_entropy
from sordino.privacy.audit.bounds import best_one_run, mean_difference, one_run, one_run_gaussian
from sordino.privacy.audit.canaries import LOUD, entrywise
from sordino.privacy.audit.federation import Recorded, record
from sordino.privacy.audit.findings import SAID, SURE, Attack, Finding, Scores
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import FLOATS
from sordino.privacy.release import Public, Releases, due
from sordino.privacy.views import VIEWS
from sordino.transport import Answer, Transport

WIDE = 32
"""A release of fewer entries has no room for canaries."""
MOST = 1000
"""The most canaries."""
RECORDS = 100
"""How many canary records join a client's own."""


@dataclass
class Joined:
    """Canaries that join what a cohort sends."""

    gate: Gate
    steps: dict[str, Releases]
    states: Collection[str]
    """The names of the clients' public states, of which bounds may be read."""
    layers: Sequence[int]
    count: int
    random: np.random.Generator
    coins: np.ndarray = field(init=False)
    scores: np.ndarray = field(init=False)
    information: float = 0.0
    directions: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coins = self.random.permutation(self.count) < self.count // 2
        self.scores = np.zeros(self.count)

    def around(self, transport: Transport) -> Transport:
        """The transport with the canaries in it."""
        return _Between(transport, self)

    def join(self, question: Question, answer: Answer, states: dict[str, Tensor]) -> None:
        """Add the canaries to what came back, and note what the sum tells of each."""
        public = Public(question.message, question.clients, states, self.layers)
        for name, release in due(self.steps[question.step], question.round).items():
            rows = answer.values[name]
            if release.unit != "client" or rows.shape[1] < WIDE:
                continue
            cover = release.cover(rows.shape[1], self.gate.allowance, public)
            assert cover is not None
            longest = entrywise(replace(cover, deviations=cover.bounds), len(rows))[:1].float()
            loud = self._directions(name, rows.shape[1]) * longest
            one = Public(public.message, public.clients[:1], {n: s[:1] for n, s in states.items()}, self.layers)
            bounded = torch.cat([release.bounded(LOUD * row.unsqueeze(0), one).rows for row in loud])
            rows[0] += torch.from_numpy(self.coins.astype(np.float32)) @ bounded
            variance = entrywise(cover, len(public.clients)).square().sum(dim=0)
            weights = torch.where(variance > 0, bounded.double() / variance, 0.0)
            total = self.gate.mean(release, rows, public).double() * len(rows)
            self.scores += (weights @ total).numpy()
            self.information += float((weights * bounded).sum(dim=1).mean())

    def _directions(self, name: str, width: int) -> Tensor:
        """For each canary a direction, all of them as good as orthogonal."""
        if name not in self.directions:
            drawn = self.random.normal(size=(self.count, width))
            if self.count <= width <= 2000:
                drawn = np.linalg.qr(drawn.T)[0].T
            self.directions[name] = torch.from_numpy(drawn).float()
        return self.directions[name]


@dataclass(frozen=True)
class _Between:
    """A transport on which canaries join."""

    of: Transport
    canaries: Joined

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        states = self.of.public_states(question.clients, self.canaries.states)
        answer = self.of.ask(question, evaluate, charge)
        self.canaries.join(question, answer, states)
        return answer

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return self.of.public_states(clients, names)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return self.of.accuracies(clients, model)


def attacks(prepared: Prepared, number: int = 4, risk: float = 1 - SURE) -> tuple[list[Attack], list[Finding]]:
    """What one run tells: attacks, and sentences on what was estimated."""
    if prepared.method.unit == "record":
        return _of_records(prepared, number, risk)
    if prepared.mechanism is not FLOATS:
        return [], []
    return _of_clients(prepared, number, risk)


def _of_clients(prepared: Prepared, number: int, risk: float) -> tuple[list[Attack], list[Finding]]:
    layout, method = prepared.learner.layout, prepared.method
    joined = Joined(
        Gate(prepared.allowance, prepared.source, prepared.mechanism),
        method.steps(),
        sorted(method.public_memory(prepared.initial, layout)),
        layout.layers,
        min(MOST, layout.size // 2),
        np.random.default_rng([number, prepared.experiment.seed]),
    )
    recorded = record(prepared, number, around=joined.around)
    if not joined.information:
        return [], []
    scores, coins = joined.scores / math.sqrt(joined.information), joined.coins
    attack, finding = _bounded("canary clients in one run", scores, coins, prepared.budget.delta, risk)
    findings = [finding]
    final = _final(recorded, joined)
    if final is not None:
        findings.append(_bounded("canary clients by the final model", final, coins, prepared.budget.delta, risk)[1])
    return [attack], findings


def _final(recorded: Recorded, joined: Joined) -> np.ndarray | None:
    """What the final model alone tells of each canary."""
    model, initial = recorded.state.get("model"), recorded.prepared.initial
    known = next((one for one in joined.directions.values() if one.shape[1] == len(initial)), None)
    if known is None or not isinstance(model, Tensor) or model.shape != initial.shape:
        return None
    return (known.double() @ (model - initial).double()).numpy()


def _bounded(
    name: str, scores: np.ndarray, coins: np.ndarray, delta: float, risk: float, gaussian: bool = True
) -> tuple[Attack, Finding]:
    inside, outside = scores[coins], scores[~coins]
    plain = best_one_run(inside, outside, delta, SAID, one_run)
    told = [f"Steinke et al. {plain:.2f}"]
    said, surely = plain, best_one_run(inside, outside, delta, 1 - risk / 3, one_run)
    if gaussian:
        curve = best_one_run(inside, outside, delta, SAID, one_run_gaussian)
        estimate, low = mean_difference(inside, outside, delta, SAID)
        lowest = mean_difference(inside, outside, delta, 1 - risk / 3)[1]
        told += [f"with a Gaussian curve {curve:.2f}", f"mean difference {low:.2f} (estimate {estimate:.2f})"]
        said, surely = max(said, curve, low), max(surely, lowest)
    sentence = f"{len(scores)} canaries; epsilon at least, at 95 %: {'; '.join(told)}."
    attack = Attack(name, "outsider", said, surely, plain, Scores(inside, outside, float(np.median(scores))))
    return attack, Finding(2, name, sentence)


def _of_records(prepared: Prepared, number: int, risk: float) -> tuple[list[Attack], list[Finding]]:
    """Canary records at the client with most records, looked for in what the server sees of it."""
    target = int(np.argmax(prepared.data.train.sizes))
    random = np.random.default_rng([number, prepared.experiment.seed])
    own = prepared.data.clients[target]
    x = torch.from_numpy(random.normal(size=(RECORDS, *prepared.data.shape))).float() * 3 * own.x.abs().max()
    y = torch.from_numpy(random.integers(0, prepared.data.classes, RECORDS))
    coins = random.permutation(RECORDS) < RECORDS // 2
    there = torch.from_numpy(coins)
    joined = ClientData(own.name, torch.cat([own.x, x[there]]), torch.cat([own.y, y[there]]), own.x_test, own.y_test)
    everybody: list[Any] = [*prepared.data.clients]
    everybody[target] = joined
    recorded = record(replace(prepared, data=replace(prepared.data, clients=tuple(everybody))), number)
    scores = np.zeros(RECORDS)
    for exchange in recorded.exchanges_of(target):
        place = list(exchange.question.clients).index(target)
        for name, release in exchange.releases.items():
            model = exchange.question.message.get("global")
            rows = exchange.answer.values[name]
            if release.made_of_gradients and isinstance(model, Tensor) and rows.shape[1] == len(model):
                scores -= _along(recorded, model, x, y) @ rows[place].double().numpy()
    if not scores.any():
        return [], []
    attack, finding = _bounded("canary records in one run", scores, coins, prepared.budget.delta, risk, gaussian=False)
    return [replace(attack, view=view) for view in VIEWS], [finding]


def _along(recorded: Recorded, model: Tensor, x: Tensor, y: Tensor) -> np.ndarray:
    """The direction of each canary record's gradient at `model`."""
    learner, rows = recorded.prepared.learner, []
    for place in range(len(y)):
        batch = Batch(x[place : place + 1], y[place : place + 1], torch.zeros(1, dtype=torch.int64), None)
        gradient = learner.gradient(model, batch, cross_entropy).double()
        rows.append((gradient / gradient.norm().clamp(min=1e-12)).numpy())
    return np.stack(rows)
