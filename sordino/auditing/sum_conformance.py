"""Tier 0 of an audit, for sums over all clients' records with shared noise: noise, prices, coins and contributions.

One message carries a share of the noise, so that what an observer meets is decided by all messages of a sum together:
the noise of the whole sum is tested, and its price for every observer. A record is promised that it enters a sum by its
coin alone: the client that has paid most answers recorded questions again, as many copies whose coins are forced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2, norm
from torch import Tensor

from sordino.auditing.findings import FLOAT32_SLACK, RISK, Finding
from sordino.auditing.record_canaries import BATCH, SCALES, VISIBLE, target_of
from sordino.auditing.recorded_run import Recorded, other_noise
from sordino.auditing.recorder import RecordedRelease, Tosses, Watching
from sordino.auditing.side_channels import copy_value
from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.federation.client import Clients, units_of
from sordino.federation.execution import stack_size
from sordino.federation.transcript import Exchange
from sordino.privacy.gate import Gate
from sordino.privacy.gradients import Units
from sordino.privacy.ledger import Row, split_attempt
from sordino.privacy.noise import Source
from sordino.privacy.views import VIEWS, View, known_shares
from sordino.util.processes import single_threaded

ROUNDING = 1e-6
"""Largest relative excess of a price by rounding."""
QUIET = 0.1
"""Factor on records whose gradients are to stay below the threshold, so that a weight that depends on them shows."""
Messages = dict[tuple[int, str], dict[int, RecordedRelease]]
"""Recorded messages by question and release, and by client."""


def messages(run: Recorded) -> Messages:
    """Group what passed the mechanism by question and release, and by client."""
    found: Messages = {}
    for passage in run.mechanism.passages:
        if passage.purpose[0] != "gradient":
            question, name = passage.purpose
            found.setdefault((int(question), str(name)), {})[passage.client] = passage
    return found


def unknown_to(view: View, run: Recorded, clients: Sequence[int], target: int) -> list[int]:
    """Clients whose shares of the noise an observer of a sum cannot subtract, the target's among them."""
    shared = run.gate.allowance.of_records.shared
    colluders = 0 if shared is None else shared.colluders
    others = [client for client in clients if client != target]
    return [target, *others[known_shares(view, len(clients), colluders) :]]


def tossed_rates(run: Recorded) -> dict[tuple[int, int], float]:
    """Rate of the coins that were tossed, by question and client."""
    return {(int(toss.purpose[0]), int(toss.purpose[1])): toss.rate for toss in run.source.tosses}


def met_multiplier(run: Recorded, exchange: Exchange, name: str, sent: Sequence[RecordedRelease]) -> float:
    """Noise multiplier of a sum, by the noise that its messages really had: standard deviation of the entry that has
    least, over the bound of one record.

    Args:
        run: the recorded run.
        exchange: question and answer.
        name: name of the release.
        sent: those messages of the sum whose noise an observer cannot subtract.
    """
    cover = exchange.releases[name].cover(len(sent[0].before), run.gate.allowance, exchange.public)
    assert cover is not None
    variance = torch.stack([one.deviations for one in sent]).square().sum(dim=0)
    return math.sqrt(float(variance.min())) / float(cover.bounds.max())


def shares(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find sums whose noise is smaller than that of their messages together: shares that depend on each other."""
    squares: dict[tuple[str, View], list[float]] = {}
    for run in runs:
        sent = messages(run)
        for exchange in run.transcript.exchanges:
            for name in (name for name, release in exchange.releases.items() if release.sums_records):
                rows = sent.get((exchange.question.number, name), {})
                for view in VIEWS[:2] if rows else ():
                    mine = [rows[client] for client in unknown_to(view, run, list(rows), next(iter(rows)))]
                    noise = torch.stack([one.after.double() - one.before.double() for one in mine]).sum(dim=0)
                    deviation = torch.stack([one.deviations for one in mine]).square().sum(dim=0).sqrt()
                    total = squares.setdefault((name, view), [0.0, 0.0])
                    leaves = deviation > 0
                    total[0] += float((noise[leaves] / deviation[leaves]).square().sum())
                    total[1] += float(leaves.sum())
    for (name, view), (found, count) in squares.items():
        if count and chi2.cdf(found * (1 + FLOAT32_SLACK), count) < RISK:
            share = math.sqrt(found / count)
            sentence = f"{name}: the noise in its sum has {share:.3f} times the deviation that its messages add up to."
            yield Finding(0, "sum", sentence, refuted=True, views=(view,))


def prices(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find sums that cost a record more, for an observer, than the ledger says; everything over one draw of coins must
    be paid by one charge."""
    for run in runs:
        rows: dict[int, dict[str, Row]] = {}
        for row in run.ledger.rows:
            if row.pool and not row.exposed:
                rows.setdefault(row.question, {})[row.release] = row
        rates, sent = tossed_rates(run), messages(run)
        for exchange in run.transcript.exchanges:
            number = exchange.question.number
            sums = {name: one for name, one in exchange.releases.items() if one.sums_records}
            drawn = [name for name, release in sums.items() if release.drawn]
            charged = rows.get(number, {})
            for group in ([drawn] if drawn else []) + [[name] for name in sums if name not in drawn]:
                together = {name: sent[number, name] for name in group if (number, name) in sent}
                paid = [charged[name] for name in group if name in charged]
                tossed = {client: rates.get((number, client), 1.0) for client in exchange.public.clients}
                found = _undercharged(run, exchange, together, paid, tossed if group == drawn else {})
                if found is not None:
                    yield found
                    return


def _undercharged(
    run: Recorded,
    exchange: Exchange,
    sent: dict[str, dict[int, RecordedRelease]],
    paid: Sequence[Row],
    tossed: dict[int, float],
) -> Finding | None:
    """Finding on the sums over one draw of coins, where their charge is too small for anybody; None where it is not.

    Args:
        run: the recorded run.
        exchange: question and answer.
        sent: recorded messages by release and client.
        paid: rows of the ledger for these releases.
        tossed: rate of the coins that each client tossed for them; one where none were.
    """
    names = " and ".join(sent)
    for client in exchange.public.clients:
        charges = [row.sums()[row.clients().tolist().index(client)] for row in paid if client in row.clients()]
        rate = max((kind[0] for kind, _ in charges), default=1.0)  # without any charge the price is zero
        chance = tossed.get(client, 1.0)
        if chance > rate * (1 + ROUNDING):
            sentence = f"{names}: records enter with probability {chance:.3g}, but {rate:.3g} is charged."
            return Finding(0, "coins", sentence, refuted=True)
        for place, view in enumerate(VIEWS):
            cost = 0.0
            for name, rows in sent.items():
                mine = [rows[one] for one in unknown_to(view, run, list(rows), client)]
                multiplier = met_multiplier(run, exchange, name, mine)
                cost += 1 / multiplier**2 if multiplier else math.inf
            each = [count / kind[1][place] ** 2 if kind[1][place] else math.inf for kind, count in charges]
            # Gaussians over all records add up; of one draw of coins, each charge would claim the secrecy for itself.
            price = sum(each) if rate == 1 else max(each)
            if cost > price * (1 + ROUNDING):
                sentence = f"{names}: mu^2 {price:.4g} is charged for one draw of coins that costs {cost:.4g} ({view})."
                return Finding(0, "price", sentence, refuted=True, views=(view,))
    return None


def coins(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find coins that fall alike in different rounds, at different clients, or in repeated attempts at a question."""
    limit = float(norm.isf(RISK / 2)) + 1.0
    for what, pairs in _pairs(runs).items():
        agreed = expected = variance = 0.0
        for one, other in pairs:
            count = min(len(one.fallen), len(other.fallen))
            chance = one.rate * other.rate + (1 - one.rate) * (1 - other.rate)
            agreed += float((one.fallen[:count] == other.fallen[:count]).sum())
            expected, variance = expected + count * chance, variance + count * chance * (1 - chance)
        if variance and abs(agreed - expected) > limit * math.sqrt(variance):
            sentence = f"Coins agree {agreed:.0f} times {what}, where independent ones do {expected:.0f} times."
            yield Finding(0, "coins", sentence, refuted=True)


def _pairs(runs: Sequence[Recorded]) -> dict[str, list[tuple[Tosses, Tosses]]]:
    """Disjoint pairs of draws of coins that must not depend on each other."""
    found: dict[str, list[tuple[Tosses, Tosses]]] = {}
    for run in runs:
        tosses = [toss for toss in run.source.tosses if 0 < toss.rate < 1]
        groups: dict[tuple[str, object], list[Tosses]] = {}
        for toss in tosses:
            number, client = int(toss.purpose[0]), int(toss.purpose[1])
            groups.setdefault(("from round to round", client), []).append(toss)
            groups.setdefault(("from client to client", number), []).append(toss)
            groups.setdefault(("from attempt to attempt", (split_attempt(number)[0], client)), []).append(toss)
        for (what, _), mine in groups.items():
            found.setdefault(what, []).extend(zip(mine[::2], mine[1::2], strict=False))
    return found


@dataclass
class ForcedCoins:
    """Source whose coins fall as the audit says: for each client a boolean for each record."""

    of: Source
    masks: Sequence[Tensor]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        return self.masks[int(purpose[1])][:count].clone()  # type: ignore[call-overload]


@dataclass(frozen=True)
class Variant:
    """Units of a copy of a client, and which of them are drawn."""

    units: Units
    drawn: Tensor


def contributions(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find records that move a sum by more than their bound, change what others contribute, or act when they are not
    drawn."""
    run = runs[0]
    target = target_of(run)
    asked: dict[str, list[Exchange]] = {}
    for exchange in run.exchanges_of(target):
        if any(release.sums_records for release in exchange.releases.values()):
            asked.setdefault(exchange.question.step, []).append(exchange)
    told = set()
    for exchanges in asked.values():
        for exchange in {id(one): one for one in (exchanges[0], exchanges[-1])}.values():
            for name, finding in _check_contributions(run, target, exchange):
                if name not in told:
                    told.add(name)
                    yield finding


def _check_contributions(run: Recorded, target: int, exchange: Exchange) -> Iterator[tuple[str, Finding]]:
    """Let copies of a client answer one question, and yield a finding on each release that does not conform, by its
    name."""
    units = units_of(run.prepared.data.train, target, torch.device("cpu"))
    units = units.at(torch.arange(min(BATCH, len(units))))
    last, tests = len(units) - 1, []
    for place, factor in dict.fromkeys([(0, 1.0), (last // 2, 1.0), (last // 2, QUIET), (last, 1.0)]):
        tests.append(_variants(run, replace(units, x=factor * units.x), place))
    sent = _sums_before_noise(run, target, exchange, [variant for test in tests for variant in test])
    if sent is None:  # the step draws random numbers: what one record does cannot be told from them
        return
    tosses = float(run.gate.allowance.of_records.sampling[target]) < 1  # with probability one everybody is drawn
    for name, release in exchange.releases.items():
        if not release.sums_records:
            continue
        cover = release.cover(sent[name].shape[1], run.gate.allowance, exchange.public)
        assert cover is not None
        bound = float(cover.bounds.max())
        moved = others = idle = 0.0
        for rest, changed, absent, *canaries in sent[name].unflatten(0, (len(tests), -1)):
            without = rest if release.drawn and tosses else absent
            idle = max(idle, float((changed - rest).norm()) / bound if release.drawn and tosses else 0.0)
            for whole, alone in zip(canaries[::2], canaries[1::2], strict=True):
                moved = max(moved, float((whole - without).norm()) / bound)
                others = max(others, float((whole - without - alone).norm()) / bound)
        if idle > VISIBLE:
            sentence = f"{name}: a record that is not drawn moves the sum by {idle:.3g} times its bound."
            yield name, Finding(0, "not drawn", sentence, refuted=True)
        elif moved > 1 + VISIBLE:
            sentence = f"{name}: one record moves the sum by {moved:.3g} times its bound."
            yield name, Finding(0, "contribution", sentence, refuted=True)
        elif others > VISIBLE:
            sentence = f"{name}: one record changes what others contribute by {others:.3g} times its bound."
            yield name, Finding(0, "contribution", sentence, refuted=True)


def _variants(run: Recorded, units: Units, place: int) -> list[Variant]:
    """Variants of a canary at one place: all others drawn; the same, while it says something else; the others without
    it; and for each of its sizes, all drawn, and it alone."""
    everybody, rest = torch.ones(len(units), dtype=torch.bool), torch.arange(len(units)) != place
    other, label = units.x.clone(), units.y.clone()
    other[place] *= -SCALES[-1]
    label[place] = run.prepared.data.task.shift(units.y[place : place + 1], 1)[0]
    kept = rest if len(units) > 1 else everybody  # every client has a record
    found = [
        Variant(units, rest),
        Variant(replace(units, x=other, y=label), rest),
        Variant(units.at(kept), everybody[kept]),
    ]
    for scale in (SCALES[0], SCALES[-1]):
        x = units.x.clone()
        x[place] *= scale
        canary = replace(units, x=x)
        found += [Variant(canary, everybody), Variant(canary.at(~rest), everybody[~rest])]
    return found


def _sums_before_noise(
    run: Recorded, target: int, exchange: Exchange, variants: Sequence[Variant]
) -> dict[str, Tensor] | None:
    """Sums before noise that copies of a client send in answer to a question, by release, one row for each variant;
    None where two equal copies send different ones."""
    copies = [*variants, variants[0]]  # the last one shows whether equal copies send the same
    allowance = run.gate.allowance
    allowance = replace(allowance, records=allowance.of_records.repeated(target, len(copies)))
    source = ForcedCoins(other_noise(run.prepared, 5), [variant.drawn for variant in copies])
    for training in (True, False):  # a network with dropout draws random numbers only while it trains
        mechanism = Watching(run.mechanism.of)
        prepared = run.prepared
        clients = Clients(
            prepared.method,
            prepared.learner,
            _copies(prepared.data, target, copies),
            Gate(allowance, source, mechanism),
            run.clients.execution,
            prepared.experiment.device,
        )
        clients.learner.module.train(training)
        _answer(run, clients, target, exchange, len(copies))
        found: dict[str, dict[int, Tensor]] = {}
        for passage in mechanism.passages:
            found.setdefault(str(passage.purpose[1]), {})[passage.client] = passage.before.double()
        stacked = {name: torch.stack([rows[copy] for copy in range(len(copies))]) for name, rows in found.items()}
        if all(torch.allclose(rows[0], rows[-1], rtol=1e-3, atol=1e-6) for rows in stacked.values()):
            return {name: rows[:-1] for name, rows in stacked.items()}
    return None


def _answer(run: Recorded, clients: Clients, target: int, exchange: Exchange, count: int) -> None:
    """Let copies of a client answer a recorded question, as many together as the run would let."""
    method, initial = run.method, run.prepared.initial
    blank = method.memory(initial) | method.public_memory(initial, run.prepared.learner.layout)
    me = {name: value.float().expand(count, *value.shape).clone() for name, value in blank.items()}
    me["participations"] = torch.zeros(count)
    message = {key: copy_value(value, target, count) for key, value in exchange.question.message.items()}
    kinds = clients.kinds(exchange.question.step, np.arange(count), np.zeros(count))
    stack = stack_size(run.prepared.learner.layout.size)
    with single_threaded():
        for group in clients.execution.groups(np.arange(count), stack, kinds):
            question = replace(exchange.question, message=message, clients=group)
            clients.answer(question, {name: rows[group] for name, rows in me.items()})


def _copies(data: FederatedData, target: int, variants: Sequence[Variant]) -> FederatedData:
    """A federation of copies of one client, each with the records of its variant."""
    count, test = len(variants), data.test
    starts, sizes = (np.full(count, one[target]) for one in (test.starts, test.sizes))
    tests = Split(test.x, test.y, starts, sizes)
    if data.train.persons is None:
        train = Split.of([(variant.units.x, variant.units.y) for variant in variants])
    else:
        train = Split.of_persons([_rows(variant.units) for variant in variants], data.train.persons.rules)
    return replace(data, clients=Dealt([f"copy-{number}" for number in range(count)], train, tests))


def _rows(units: Units) -> tuple[Tensor, Tensor, np.ndarray]:
    """Rows of persons with their targets, padding left out, and the number of the person of each."""
    assert units.shares is not None
    real = units.shares > 0
    return units.x[real], units.y[real], real.nonzero()[:, 0].numpy()
