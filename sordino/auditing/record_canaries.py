"""Tier 1 of an audit, at record level: a canary attack that tells whether one record took part.

One noisy gradient is attacked with inclusion forced: every record of a client that is there enters the batch, and each
record is a canary or is not there at all. They go through the production path: gradients of single records by a
network's book-keeping, clipping, the gate's sum and noise. Each record has a feature of its own, so that the records of
one batch are trials that do not touch each other, and its gradient is far longer than the threshold.

What this finds of one gradient (its mu is at least so large) is put together with what the sampler does, which is
tested apart (`conformance`), and with how many gradients really passed in the recorded run: the epsilon of the whole is
that of the privacy-loss distribution of all Poisson-sampled steps, rounded so that it is never above the truth. The
closed form of Gaussians is used for nothing that is sampled.

That attack uses a logistic regression of ours, which keeps records apart. Whether the run's own network does is tested
by `mixing`, without noise: with a canary at several places of a batch and of several sizes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino import models
from sordino.auditing.bounds import Guesses
from sordino.auditing.client_canaries import EXCESS_LENGTH, QUESTION_STRIDE, Tiled
from sordino.auditing.findings import SAID, SURE, Attack, Finding, Scores
from sordino.auditing.recorded_run import Recorded, other_noise
from sordino.data.dataset import Split
from sordino.experiment.prepare import Prepared
from sordino.federation.client import keeper_of, units_of
from sordino.federation.transcript import Exchange
from sordino.learning.network import Learner
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import Recipe
from sordino.privacy.gate import Gate, SampledGradients
from sordino.privacy.gradients import PrivateRecords, Stack, Units
from sordino.privacy.release import Average, Matrix, Public, Release
from sordino.privacy.views import VIEWS
from sordino.tasks import Classification

CANARIES = 500
"""Records of a client all of which may be canaries."""
CANARY_FEATURE = 200.0
"""The only feature of a canary: its gradient has this length or more, nearly all of it in the canary's own column."""
BATCH, SCALES, VISIBLE = 12, (1.0, 10.0, 100.0), 0.02
"""Records of a batch in which a network is looked at, how much larger a canary is made, and the share of a threshold
that rounding never reaches."""
STEPS, KINDS, LEAST_NOISE = 5000, 4, 0.05
"""The most steps and kinds of them, and the least noise, of which privacy-loss distributions are made: fewer steps and
more noise cost no more, so the bound holds."""


@dataclass(frozen=True)
class Base:
    """Result of attacking one kind of release: how much of the charged 1 / z the attack reaches."""

    multiplier: float
    """Noise multiplier z, as charged."""
    scores: Scores

    def reached(self, confidence: float) -> float:
        """mu of one release, at least, over the 1 / z that is charged."""
        return self.guesses().mu(confidence) * self.multiplier

    def guesses(self) -> Guesses:
        """Guesses of the test."""
        return self.scores.guesses()


def target_of(recorded: Recorded) -> int:
    """The client whose records have paid most."""
    prepared = recorded.prepared
    spent = recorded.ledger.record_epsilons(prepared.allowance.observer, prepared.budget.delta)
    return max(spent, key=lambda client: (spent[client], len(recorded.exchanges_of(client)))) if spent else 0


def attacks(
    recorded: Recorded, trials: int, claims: dict[Any, float], number: int = 1, risk: float = 1 - SURE
) -> list[Attack]:
    """Attack the claim for records. Noise that protects records is in every message: all observers meet the same.

    Args:
        recorded: the run whose gate is attacked.
        trials: number of trials for each kind of release.
        claims: claimed epsilon by observer.
        number: sets the noise of this attack apart from others.
        risk: probability that any claim is refuted by chance.
    """
    target, delta = target_of(recorded), recorded.prepared.budget.delta
    bases = _bases(recorded, target, trials, number)
    if not bases:
        return []
    best: Attack | None = None
    sure = 1 - risk / len(bases)
    lowest = min(claims.values())
    for pool, passed in _count_passages(recorded, target).items():
        said, surely = (
            lower_epsilon(_recipe(passed, bases, confidence), delta) if not math.isinf(lowest) else 0.0
            for confidence in (SAID, sure)
        )
        known = [kind for kind in passed if kind[0] in bases]
        if not known:
            continue
        base = bases[max(known, key=lambda kind: passed[kind])[0]]
        one = Attack(f"canary record, {pool}", "server", said, surely, 0.0, base.scores, 1 / base.multiplier)
        best = one if best is None or one.bound > best.bound else best
    return [] if best is None else [replace(best, view=view) for view in VIEWS]


Kind = tuple[str, float, float]
"""A release, the rate with which a record enters it, and its noise multiplier as declared."""


def _count_passages(recorded: Recorded, target: int) -> dict[str, Counter[Kind]]:
    """Count, by pool, how often a record of the target went through each kind of release, by what passed the
    mechanism."""
    rates = {toss.purpose[:2]: toss.rate for toss in recorded.source.tosses}
    dealt = {deal.purpose[:2]: deal.batches for deal in recorded.source.deals}
    asked = {one.question.number: one for one in recorded.exchanges_of(target)}
    found: dict[str, Counter[Kind]] = {}
    for passage in recorded.mechanism.passages:
        if passage.client != target:
            continue
        exchange = _exchange(passage.purpose, asked)
        if exchange is None:
            continue
        if passage.purpose[0] == "gradient":
            batches = dealt.get((passage.purpose[1], target))
            if batches is not None and (passage.number + 1) % batches:
                continue  # of all sums of a pass a record is in one
            release = _gradient_release(exchange)
            clips = _thresholds(exchange, release, target)
            sizes = recorded.prepared.learner.layout.parts(len(clips))
            noise = torch.stack([part[0] for part in passage.deviations.split(sizes)])
            # Where parts have noise of their own, a record moves each by its threshold over its noise.
            whole = float(torch.linalg.vector_norm(clips / (noise / noise[0])))
            rate = rates[passage.purpose[1], target] if batches is None else 1.0
            kind = (release, rate, float(noise[0]) / whole)
        else:
            release = str(passage.purpose[1])
            cover = exchange.releases[release].cover(len(passage.before), recorded.gate.allowance, exchange.public)
            assert cover is not None
            place = list(exchange.public.clients).index(target) if len(cover.bounds) > 1 else 0
            kind = (release, 1.0, float(cover.deviations[place, 0] / cover.bounds[place, 0]))
        pool = getattr(exchange.releases[release], "pool", "training")
        found.setdefault(pool, Counter())[kind] += 1
    return found


def mixing(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find networks that mix records: where one record moves a sum of clipped gradients by more than its threshold, or
    another record's part of it.

    Taken as the run takes it, of the client that has paid most, at the first model; with dropout, which draws other
    numbers for other batches, as the network is evaluated.
    """
    run = runs[0]
    if not run.method.unit.record_level or not run.method.is_private():
        return
    target = target_of(run)
    asked = run.exchanges_of(target)
    taken = [one for one in asked if any(release.made_of_gradients for release in one.releases.values())]
    if not taken:
        return
    release = _gradient_release(taken[0])
    clip = float(torch.linalg.vector_norm(_thresholds(taken[0], release, target)))
    if not 0 < clip < math.inf:
        return
    moved, others = 0.0, 0.0
    module = run.prepared.learner.module
    for training in (True, False):
        module.train(training)
        try:
            found = _largest_moves(run, target, clip)
        finally:
            module.train()
        moved, others = max(moved, found[0]), max(others, found[1])
    if moved > 1 + VISIBLE:
        sentence = f"{release}: the network mixes records: one moves the sum by {moved:.3g} times its threshold."
    elif others > VISIBLE:
        sentence = (
            f"{release}: the network mixes records: one changes the others' part by {others:.3g} times the threshold."
        )
    else:
        return
    yield Finding(0, "mixing", sentence, refuted=True)


def _largest_moves(run: Recorded, target: int, clip: float) -> tuple[float, float]:
    """Largest distances, in thresholds, by which a canary moves the sum, and by which it moves the other records'
    part."""
    learner, flat, device = run.prepared.learner, run.prepared.initial, run.clients.device
    source = other_noise(run.prepared, 0)
    records = run.prepared.data.train
    units = units_of(records, target, device).at(torch.arange(BATCH)[: int(records.units[target])])
    flat = flat.to(device)

    def total(units: Units) -> Tensor:
        if len(units) == 0:
            return torch.zeros_like(flat, dtype=torch.float64)
        exit = SampledGradients(
            source, (QUESTION_STRIDE, target), (1.0, 0.0, 1), torch.tensor([clip])
        )  # everybody, without noise
        compiled = run.prepared.compiled if learner.module.training else None
        nobody = torch.zeros(len(units), dtype=torch.bool, device=device)
        data = PrivateRecords(units, nobody, keeper_of(learner, records), exit, compiled=compiled)
        return data.gradient(flat).double() * data.expected_batch

    with torch.random.fork_rng(devices=[]):
        if not torch.allclose(total(units), total(units), atol=VISIBLE * clip):
            return 0.0, 0.0  # it draws random numbers
        moved, others = 0.0, 0.0
        for place in {0, len(units) // 2, len(units) - 1}:
            rest = torch.arange(len(units), device=device) != place
            without = total(units.at(rest))
            for scale in SCALES:
                x = units.x.clone()
                x[place] *= scale
                canary = replace(units, x=x)
                change = total(canary) - without
                alone = total(canary.at(~rest))
                moved = max(moved, float(change.norm()) / clip)
                others = max(others, float((change - alone).norm()) / clip)
    return moved, others


def _exchange(purpose: tuple[Any, ...], asked: dict[int, Exchange]) -> Exchange | None:
    return asked.get(purpose[1] if purpose[0] == "gradient" else purpose[0])


def _gradient_release(exchange: Exchange) -> str:
    return next(name for name, release in exchange.releases.items() if release.made_of_gradients)


def _thresholds(exchange: Exchange, release: str, client: int) -> Tensor:
    """The thresholds of a record's gradient, one for each part of it."""
    found = exchange.releases[release].thresholds(exchange.public)
    assert found is not None
    return found.of(list(exchange.public.clients).index(client))


def _recipe(passed: Counter[Kind], bases: dict[str, Base], confidence: float) -> Recipe:
    """Recipe that a record has gone through at least, as the attack found it."""
    found = []
    for (release, rate, multiplier), count in passed.items():
        reached = bases[release].reached(confidence) if release in bases else 0.0
        if reached > 0:
            found.append((rate, multiplier / reached, count))
    return tuple(found)


def _bases(recorded: Recorded, target: int, trials: int, number: int) -> dict[str, Base]:
    """Every kind of noisy release of the target's records, attacked once."""
    found: dict[str, Base] = {}
    source = other_noise(recorded.prepared, number)
    gate = replace(recorded.gate, source=source, mechanism=recorded.mechanism.of)
    for exchange in recorded.exchanges_of(target):
        for name, release in exchange.releases.items():
            if name in found or not release.record_level:
                continue
            if release.made_of_gradients:
                clip = torch.linalg.vector_norm(_thresholds(exchange, name, target))
                found[name] = _gradient_base(recorded.prepared, gate, target, clip, trials)
            elif isinstance(release, Average | Matrix):
                found[name] = _once_base(gate, exchange, name, release, target, trials)
    return found


def _gradient_base(prepared: Prepared, gate: Gate, target: int, clip: Tensor, trials: int) -> Base:
    """Noisy gradients of a client all of whose records are canaries, or are not there; taken as the run takes them.

    Parts with noise of their own are attacked as one vector: what their noise is worth together is measured in the run.
    """
    plan = gate.allowance.of_records
    forced = replace(plan, sampling=np.ones_like(plan.sampling), steps=np.ones_like(plan.steps), passes=None)
    gate = replace(gate, allowance=replace(gate.allowance, records=forced))
    learner = Learner(models.build("logistic", (CANARIES,), 2), Classification.numbered(2))
    weights = next(shape for shape in learner.layout.shapes if len(shape) == 2)
    assert weights == (2, CANARIES)
    multiplier, long = float(plan.multipliers[target]), max(CANARY_FEATURE, EXCESS_LENGTH * 2 * float(clip))
    inside, outside = [], []
    random = np.random.default_rng(gate.source.key("canaries"))
    for batch in range(math.ceil(trials / CANARIES)):
        there = torch.from_numpy(random.permutation(CANARIES) < CANARIES // 2)
        x = (long * torch.eye(CANARIES))[there]
        stacked = prepared.choice.engine == "stacked" and len(plan.steps) > 1
        take = _stacked_sum if stacked else _sum
        total = take(gate, QUESTION_STRIDE + batch, target, clip, canaries(prepared, x), learner)
        columns = total[: 2 * CANARIES].reshape(2, CANARIES)
        score = ((columns[1] - columns[0]) / math.sqrt(2) / (multiplier * float(clip))).numpy()
        inside.append(score[there.numpy()])
        outside.append(score[~there.numpy()])
    return Base(multiplier, Scores.of(np.concatenate(inside), np.concatenate(outside)))


def canaries(prepared: Prepared, x: Tensor) -> Split:
    """Canaries of the first class as the only client's records: where persons are protected, each is one with as many
    equal rows as a person may have."""
    persons = prepared.data.train.persons
    if persons is None:
        return Split.of([(x, torch.zeros(len(x), dtype=torch.int64))])
    rows, person = persons.rules.max_rows, np.arange(len(x))
    x = x.repeat_interleave(rows, dim=0)
    return Split.of_persons([(x, torch.zeros(len(x), dtype=torch.int64), person.repeat(rows))], persons.rules)


def _sum(gate: Gate, question: int, target: int, clip: Tensor, records: Split, learner: Learner) -> Tensor:
    """The noisy sum of all gradients of a client's records, at a network of zeros."""
    units, exit = units_of(records, 0, torch.device("cpu")), gate.gradients(question, target, clip)
    nobody = torch.zeros(len(units), dtype=torch.bool)
    data = PrivateRecords(units, nobody, keeper_of(learner, records), exit)
    return data.gradient(torch.zeros(learner.layout.size)).double() * data.expected_batch


def _stacked_sum(gate: Gate, question: int, target: int, clip: Tensor, records: Split, learner: Learner) -> Tensor:
    """Noisy sum of all gradients of a client's records, at a network of zeros, taken together with another client's."""
    x, y = records.x, records.y
    exit = gate.stacked_gradients(question, [target, 0 if target else 1], torch.stack([clip.reshape(1)] * 2))
    stack = Stack(torch.stack([x, x]), torch.stack([y, y]), [len(y)] * 2, learner, exit)
    rows = stack.gradients(torch.zeros(2, learner.layout.size), stack.figures["place"])
    return rows[0].double() * float(stack.figures["batch"][0])


def _once_base(gate: Gate, exchange: Exchange, name: str, release: Release, target: int, trials: int) -> Base:
    """A mean or a matrix of records one of which is the canary, or says nothing."""
    plan = gate.allowance.of_records
    public = Public(exchange.public.message, (target,), {}, exchange.public.layers)
    entries = exchange.answer.values[name].shape[1]
    if isinstance(release, Average):
        records = int(plan.validation[target])
        null = torch.full((1, records), release.centre())
        canary = null.clone()
        canary[0, 0] += EXCESS_LENGTH * (release.high - release.low)
        multiplier = float(plan.mean_multipliers[target])
    else:
        null = torch.zeros(2, math.isqrt(entries))
        canary = null.clone()
        canary[0, 0] = EXCESS_LENGTH
        multiplier = float(plan.matrix_multipliers[target])
    tiled = Tiled(release, torch.zeros(1, dtype=torch.int64), canary, null, entries)
    coins = (torch.arange(trials) % 2 == 0).float().reshape(1, -1)
    passed = gate.passes({name: tiled}, {name: coins}, exchange.question.number, public).values[name]
    cover = tiled.cover(trials, gate.allowance, public)
    score = (passed[0].double() / cover.deviations[0, 0]).numpy()
    there = coins[0].numpy() > 0
    return Base(multiplier, Scores.of(score[there], score[~there]))


def lower_epsilon(recipe: Recipe, delta: float) -> float:
    """An epsilon that a record which went through `recipe` surely has at least: privacy losses are rounded down."""
    plain = math.sqrt(sum(count / multiplier**2 for rate, multiplier, count in recipe if rate == 1))
    sampled = [charge for charge in recipe if charge[0] < 1]
    if not sampled:
        return epsilon_of(plain, delta)
    from dp_accounting.pld import privacy_loss_distribution as pld

    most = sorted(sampled, key=lambda one: one[2] * (one[0] / one[1]) ** 2)[-KINDS:]  # what is left out costs nothing
    little = min(max(multiplier, LEAST_NOISE) for _, multiplier, _ in most)
    grid, steps = (1e-3, STEPS) if little > 0.3 else (1e-2, 20)
    gaussians = [(rate, max(multiplier, LEAST_NOISE), min(count, steps)) for rate, multiplier, count in most]
    total = None
    for rate, multiplier, count in (*gaussians, *([(1.0, 1 / plain, 1)] if plain > 0 else [])):
        one = pld.from_gaussian_mechanism(
            multiplier,
            pessimistic_estimate=False,
            value_discretization_interval=grid,
            sampling_prob=rate,
            use_connect_dots=False,  # which knows upper bounds only
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))
