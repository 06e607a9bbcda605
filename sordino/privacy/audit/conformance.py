"""Tier 0: does everything that left have the noise, the bounds, the coins and the price that were declared?

Inputs are known here, so noise is looked at by itself: what left less what was to leave. Two runs are looked at, with
other noise, the second of which is stopped and taken up again. Attacks on sums would miss some of this: noise that
comes twice can be subtracted, but makes a sum no easier to read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import norm
from torch import Tensor

from sordino.privacy.audit import draws, records
from sordino.privacy.audit.draws import RISK, kinds
from sordino.privacy.audit.federation import Recorded
from sordino.privacy.audit.findings import Finding
from sordino.privacy.audit.rehearsal import Understudy
from sordino.privacy.ledger import Row
from sordino.privacy.views import VIEWS


def findings(runs: Sequence[Recorded], understudy: Understudy) -> list[Finding]:
    """What does not conform, of several runs of one experiment, the first of which is rehearsed."""
    found: list[Finding] = []
    for check in (draws.variances, draws.independence, _norms, _bare, _coins, _charges, _sizes, records.mixing):
        found += check(runs)
    return [*found, *_channels(runs[0], understudy)]


def _norms(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """What is noised is no longer than its bound."""
    for kind, passages in kinds(runs).items():
        ratio = max((float(p.before.double().norm()) / p.bound for p in passages if math.isfinite(p.bound)), default=0)
        if ratio > 1 + 1e-6:
            yield Finding(0, "norm", f"{kind}: a message is {ratio:.3g} times as long as is charged.", refuted=True)


def _bare(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Nothing leaves where there is no noise."""
    for kind, passages in kinds(runs).items():
        if any(passage.bare() for passage in passages if passage.price < math.inf):
            yield Finding(0, "bare", f"{kind}: some of its entries leave without noise.", refuted=True)


def _coins(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Every record enters every batch by a coin of its own."""
    tosses = [toss for run in runs for toss in run.source.tosses if 0 < toss.rate < 1]
    if not tosses:
        return
    limit = float(norm.isf(RISK / 2)) + 1.0  # sums of binomial squares have somewhat longer tails
    sizes = np.array([[len(t.fallen), t.rate, float(t.fallen.sum())] for t in tosses]).T
    count, rate, taken = sizes
    variance = count * rate * (1 - rate)
    off = float((taken - count * rate).sum() / math.sqrt(variance.sum()))
    if abs(off) > limit:
        yield Finding(
            0,
            "coins",
            f"{taken.sum():.0f} records entered batches where {(count * rate).sum():.0f} are expected.",
            refuted=off > 0,
        )
    if abs(_dispersion(taken, count, rate)) > limit:
        yield Finding(0, "coins", "The sizes of batches do not vary as independent coins let them.", refuted=True)
    for run in runs:
        groups: dict[tuple[int, float, int], list[np.ndarray]] = {}
        for toss in run.source.tosses:
            if 0 < toss.rate < 1:
                key = (int(toss.purpose[1]), toss.rate, len(toss.fallen))
                groups.setdefault(key, []).append(toss.fallen.numpy())
        often = [(np.sum(falls, axis=0), len(falls), key[1]) for key, falls in groups.items()]
        entered = np.concatenate([counts for counts, _, _ in often])
        steps = np.concatenate([np.full(len(counts), times) for counts, times, _ in often])
        rates = np.concatenate([np.full(len(counts), one) for counts, _, one in often])
        if steps.max() > 1 and abs(_dispersion(entered, steps, rates)) > limit:
            yield Finding(
                0, "coins", "How often single records enter does not vary as independent coins let it.", refuted=True
            )
        batches = [(key, fall.tobytes()) for key, falls in groups.items() for fall in falls if fall.sum() > 5]
        if len(set(batches)) < 0.9 * len(batches):
            yield Finding(0, "coins", "The same batches come again and again.", refuted=True)


def _dispersion(taken: np.ndarray, count: np.ndarray, rate: np.ndarray) -> float:
    """By how many standard errors binomial numbers vary more, or less, than they should."""
    variance = count * rate * (1 - rate)
    squares = np.square(taken - count * rate) / variance
    errors = 2 + (1 - 6 * rate * (1 - rate)) / variance
    return float((squares - 1).sum() / math.sqrt(errors.sum()))


def _charges(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Everything on the wire has its row in the ledger, at the price that its noise asks for."""
    for run in runs:
        rows = [row for row in run.ledger.rows if not row.exposed]
        paid, times = {(row.question, row.release): row for row in rows}, Counter((r.question, r.release) for r in rows)
        steps = run.method.steps()
        counted = {
            (row.question, client): int(count)
            for row in run.ledger.rows
            if row.pool and steps[row.step][row.release].made_of_gradients
            for client, (_, _, count) in zip(row.clients().tolist(), row.histories(), strict=True)
        }
        left = Counter((one.question.number, name) for one in run.transcript.exchanges for name in one.answer.values)
        missing = [(name, count - times[number, name]) for (number, name), count in left.items()]
        missing = [(name, count) for name, count in missing if count > 0]
        if missing:
            name, count = missing[0]
            yield Finding(
                0, "uncharged", f"{name} left {count} times more than the ledger says of a question.", refuted=True
            )
            return
        taken: dict[tuple[int, int], int] = {}
        for passage in run.mechanism.passages:
            if passage.purpose[0] == "gradient":
                key = (int(passage.purpose[1]), passage.client)
                taken[key] = taken.get(key, 0) + 1
            elif math.isfinite(passage.bound):
                row = paid.get((passage.purpose[0], passage.purpose[1]))
                if row is not None and passage.price > _paid(row, passage.client) * (1 + 1e-6):
                    yield Finding(
                        0,
                        "price",
                        f"{passage.purpose[1]}: mu^2 {_paid(row, passage.client):.4g} is charged for noise that costs "
                        f"{passage.price:.4g}.",
                        refuted=True,
                    )
                    return
        more = {key: count for key, count in taken.items() if count > counted.get(key, 0)}
        if more:
            key, count = next(iter(more.items()))
            yield Finding(
                0,
                "steps",
                f"{count} noisy gradients passed where {counted.get(key, 0)} are charged.",
                refuted=True,
            )
            return


def _paid(row: Row, client: int) -> float:
    costs = row.costs()[VIEWS.index("server")]
    place = row.clients().tolist().index(client) if len(costs) > 1 else 0
    return float(costs[place])


def _sizes(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """What goes over the wire is as much as was declared, and what came needs no more than that."""
    for exchange in (one for run in runs for one in run.transcript.exchanges):
        declared = 0
        for name, rows in exchange.answer.values.items():
            release, clients = exchange.releases[name], len(rows)
            width, each = release.width(exchange.public), release.message_bytes(rows.shape[1], exchange.public)
            declared += clients * each
            needed = max(needed_bytes(row) for row in rows)
            if width is not None and rows.shape[1] != width:
                yield Finding(0, "bytes", f"{name}: {rows.shape[1]} entries left where {width} are declared.", True)
                return
            if needed > each:
                yield Finding(0, "bytes", f"{name}: a message needs {needed} bytes where {each} are declared.", True)
                return
        if declared != exchange.answer.bytes:
            yield Finding(0, "bytes", f"{exchange.answer.bytes} bytes left where {declared} are declared.", True)
            return


def needed_bytes(row: Tensor) -> int:
    """So many bytes a message takes at the least: four for each entry that is not zero, or as many bits for each entry
    as tell its different values apart."""
    bits = min(32, math.ceil(math.log2(max(1, len(row.unique())))))
    return min(4 * int(row.count_nonzero()), math.ceil(row.numel() * bits / 8))


def _channels(run: Recorded, understudy: Understudy) -> Iterator[Finding]:
    """Nothing but what is noised, or charged infinity, depends on records."""
    for name, sentence in understudy.rehearse(run).items():
        yield Finding(0, name, f"{sentence[0].upper()}{sentence[1:]}.", refuted=True)
