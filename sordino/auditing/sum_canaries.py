"""Tier 1 of an audit, for sums over all clients' records with shared noise: membership attacks in which each observer
looks for a canary record in one sum.

One sum is attacked with coins forced: every canary that is there enters the batch, the others contribute nothing. It
goes through the production path: gradients of single records, thresholds, the gate's sum, every client's share of the
noise and the gate's mean over the cohort. An observer subtracts what it knows: the other records' sums, and the shares
of the noise that it knows (a peer its own, the server all but the target's).

What this finds of one sum (its mu is at least so large) is put together with how many sums passed in the recorded run.
All sums over one draw of coins are one Gaussian. Without sampling the Gaussians add up in closed form; sampled ones are
composed as privacy-loss distributions, rounded down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino import models
from sordino.auditing.client_canaries import EXCESS_LENGTH, QUESTION_STRIDE, Tiled
from sordino.auditing.findings import SAID, SURE, Attack, Scores
from sordino.auditing.record_canaries import CANARIES, CANARY_FEATURE, Base, canaries, lower_epsilon, target_of
from sordino.auditing.recorded_run import Recorded, other_noise
from sordino.auditing.sum_conformance import messages, met_multiplier, tossed_rates, unknown_to
from sordino.federation.client import keeper_of, units_of
from sordino.federation.transcript import Exchange
from sordino.learning.network import Learner
from sordino.privacy.accounting.sampled_gaussian import Recipe
from sordino.privacy.gate import Gate
from sordino.privacy.gradients import PrivateRecords, Stack
from sordino.privacy.release import Public, Release
from sordino.privacy.release.base import Thresholds
from sordino.privacy.sealed import Sealed, open_sealed
from sordino.privacy.views import VIEWS, View
from sordino.tasks import Classification

Bases = dict[tuple[str, View], Base]
"""Attack on one sum, by release and observer."""


def attacks(recorded: Recorded, trials: int, number: int = 1, risk: float = 1 - SURE) -> list[Attack]:
    """Attack what is claimed for a record against each observer.

    Args:
        recorded: the run whose gate is attacked.
        trials: number of trials for each release.
        number: sets the noise of this attack apart from others.
        risk: probability that any claim is refuted by chance.
    """
    target, delta = target_of(recorded), recorded.prepared.budget.delta
    bases = dict(_bases(recorded, target, trials, number))
    found = []
    for view in VIEWS:
        mine = {name: base for (name, seen_by), base in bases.items() if seen_by == view}
        if not mine:
            continue
        said = lower_epsilon(_recipe(recorded, target, view, mine, 1 - (1 - SAID) / len(mine)), delta)
        surely = lower_epsilon(_recipe(recorded, target, view, mine, 1 - risk / len(bases)), delta)
        shown = min(mine.values(), key=lambda base: base.multiplier)
        attack = Attack("canary record in the sum", view, said, surely, 0.0, shown.scores, 1 / shown.multiplier)
        found.append(attack)
    return found


def _recipe(recorded: Recorded, target: int, view: View, bases: dict[str, Base], confidence: float) -> Recipe:
    """Recipe that costs no more than the true one of the target's record (a lower bound), as the observer sees it."""
    reached = {name: base.reached(confidence) for name, base in bases.items()}
    rates, sent, found = tossed_rates(recorded), messages(recorded), Counter[tuple[float, float]]()
    for exchange in recorded.exchanges_of(target):
        number, drawn = exchange.question.number, 0.0
        for name in (name for name in bases if name in exchange.releases and exchange.sees(name, view)):
            mine = [sent[number, name][client] for client in _left(recorded, exchange, name, target, view)]
            cost = (reached[name] / met_multiplier(recorded, exchange, name, mine)) ** 2
            if exchange.releases[name].drawn:
                drawn += cost
            elif cost:
                found[1.0, 1 / math.sqrt(cost)] += 1
        if drawn:
            found[rates.get((number, target), 1.0), 1 / math.sqrt(drawn)] += 1
    return tuple((rate, multiplier, count) for (rate, multiplier), count in found.items())


def _left(recorded: Recorded, exchange: Exchange, name: str, target: int, view: View) -> list[int]:
    """Clients whose noise is left to an observer when it has subtracted what it knows."""
    seen = "server" if exchange.sees(name, view) == "rows" else view
    return unknown_to(seen, recorded, list(exchange.public.clients), target)


def _bases(recorded: Recorded, target: int, trials: int, number: int) -> Iterator[tuple[tuple[str, View], Base]]:
    """Attack each release of the target's records once, for every observer."""
    gate = replace(recorded.gate, source=other_noise(recorded.prepared, number), mechanism=recorded.mechanism.of)
    attacked = set()
    for exchange in recorded.exchanges_of(target):
        for name, release in exchange.releases.items():
            cover = release.cover(exchange.answer.values[name].shape[1], gate.allowance, exchange.public)
            if name in attacked or not release.sums_records or cover is None or not float(cover.deviations.min()):
                continue
            attacked.add(name)
            attack = _ReleaseTrials(recorded, gate, exchange, name, target)
            scores = attack.of_gradients(trials) if release.made_of_gradients else attack.of_records(trials)
            for view, (inside, outside) in scores.items():
                yield (name, view), Base(attack.multiplier(view), Scores.of(inside, outside))


Seen = dict[View, tuple[np.ndarray, np.ndarray]]
"""Scores of trials with the canary and without, by observer."""


@dataclass(frozen=True)
class _ReleaseTrials:
    """Trials of one release, with the canary and without."""

    recorded: Recorded
    gate: Gate
    exchange: Exchange
    name: str
    target: int

    @property
    def release(self) -> Release:
        return self.exchange.releases[self.name]

    @property
    def place(self) -> int:
        return list(self.exchange.public.clients).index(self.target)

    def multiplier(self, view: View) -> float:
        """Noise of the sum over the bound of one record, as an observer meets it, by the noise that is declared."""
        cover = self.release.cover(1, self.gate.allowance, self.exchange.public)
        assert cover is not None
        shares = len(_left(self.recorded, self.exchange, self.name, self.target, view))
        return math.sqrt(shares) * float(cover.deviations.min() / cover.bounds.max())

    def of_gradients(self, trials: int) -> Seen:
        """Sums of gradients of a client all of whose records are canaries, or are not there.

        Each canary has a feature of its own, so that those of one sum are trials that do not touch each other.
        """
        plan = self.gate.allowance.of_records
        forced = replace(plan, sampling=np.ones_like(plan.sampling))
        gate = replace(self.gate, allowance=replace(self.gate.allowance, records=forced))
        learner = Learner(models.build("logistic", (CANARIES,), 2), Classification.numbered(2))
        clients = list(self.exchange.public.clients)
        public = Public(self.exchange.public.message, clients, {}, learner.layout.layers)
        thresholds = self.release.thresholds(public)
        assert thresholds is not None
        clip = thresholds.of(self.place)
        long = max(CANARY_FEATURE, EXCESS_LENGTH * 2 * float(clip))
        random = np.random.default_rng(gate.source.key("canaries", self.name))
        found: dict[View, list[tuple[np.ndarray, np.ndarray]]] = {}
        for batch in range(math.ceil(trials / CANARIES)):
            there = torch.from_numpy(random.permutation(CANARIES) < CANARIES // 2)
            x, question = (long * torch.eye(CANARIES))[there], QUESTION_STRIDE + batch
            totals = torch.zeros(len(clients), learner.layout.size)  # what others send is known, and subtracted
            totals[self.place] = self._gradients(gate, question, thresholds, x, learner)
            sealed = Sealed(totals, "training", "sum of gradients", "sum")
            rows = gate.passes({self.name: self.release}, {self.name: sealed}, question, public).values[self.name]
            for view, values in self._observe(gate, self.release, rows, public).items():
                columns = values[: 2 * CANARIES].reshape(2, CANARIES)
                score = ((columns[1] - columns[0]) / math.sqrt(2)).numpy()
                found.setdefault(view, []).append((score[there.numpy()], score[~there.numpy()]))
        joined = {view: [np.concatenate(side) for side in zip(*parts, strict=True)] for view, parts in found.items()}
        return {view: (inside, outside) for view, (inside, outside) in joined.items()}

    def _gradients(self, gate: Gate, question: int, thresholds: Thresholds, x: Tensor, learner: Learner) -> Tensor:
        """The target's sum at a network of zeros, taken as the run takes it."""
        records, others = canaries(self.recorded.prepared, x), len(gate.allowance.of_records.steps)
        clip, normalised = thresholds.of(self.place).reshape(1, 1), thresholds.normalised
        x, y = records.x, records.y
        if self.recorded.prepared.choice.engine == "stacked" and others > 1:
            both = [self.target, 0 if self.target else 1]
            batches = gate.batches(question, both, clip.expand(2, 1), normalised)
            stack = Stack(torch.stack([x, x]), torch.stack([y, y]), [len(y)] * 2, learner, None, batches)
            sealed = stack.gradient_sums(torch.zeros(2, learner.layout.size), stack.figures["place"])
            return open_sealed(sealed)[0]
        (batch,) = gate.batches(question, [self.target], clip, normalised)
        units = units_of(records, 0, torch.device("cpu"))
        nobody = torch.zeros(len(units), dtype=torch.bool)
        data = PrivateRecords(units, nobody, keeper_of(learner, records), None, batch=batch)
        return open_sealed(data.gradient_sum(torch.zeros(learner.layout.size)))[0]

    def of_records(self, trials: int) -> Seen:
        """Sums of a vector for each record, of which the canary's is too long, or nothing."""
        public, clients = self.exchange.public, len(self.exchange.public.clients)
        entries = self.exchange.answer.values[self.name].shape[1]
        cover = self.release.cover(entries, self.gate.allowance, public)
        assert cover is not None
        null = torch.zeros(1, entries)
        canary = null.clone()
        canary[0, 0] = EXCESS_LENGTH * float(cover.bounds.max())
        tiled = Tiled(self.release, torch.zeros(1, dtype=torch.int64), canary, null, entries)
        coins = torch.zeros(clients, trials)
        coins[self.place] = (torch.arange(trials) % 2 == 0).float()
        rows = self.gate.passes({self.name: tiled}, {self.name: coins}, QUESTION_STRIDE, public).values[self.name]
        there = coins[self.place].numpy() > 0
        seen = self._observe(self.gate, tiled, rows, public)
        return {view: (values.numpy()[there], values.numpy()[~there]) for view, values in seen.items()}

    def _observe(self, gate: Gate, release: Release, rows: Tensor, public: Public) -> dict[View, Tensor]:
        """Rest of a release of the run that no observer can subtract, by observer, in units of its declared noise."""
        read, clients = gate.read(release, rows, public).double(), list(public.clients)
        total = gate.mean(release, rows, public).double() * (len(clients) / release.weight(gate.allowance, public))
        cover = self.release.cover(1, gate.allowance, public)
        assert cover is not None
        found = {}
        for view in VIEWS:
            if self.exchange.sees(self.name, view) is not None:
                left = _left(self.recorded, self.exchange, self.name, self.target, view)
                known = [place for place, client in enumerate(clients) if client not in left]
                alone = read[self.place] if left == [self.target] else total - read[known].sum(dim=0)
                found[view] = alone / (math.sqrt(len(left)) * float(cover.deviations.min()))
        return found
