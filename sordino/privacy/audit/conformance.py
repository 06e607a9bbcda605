"""Tier 0: does everything that left have the noise, the bounds, the coins and the price that were declared?

Inputs are known here, so noise is looked at by itself: what left less what was to leave. Two runs are looked at, with
other noise, the second of which is stopped and taken up again. Attacks on sums would miss some of this: noise that
comes twice can be subtracted, but makes a sum no easier to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.stats import chi2, norm

from sordino.privacy.audit.federation import Recorded, check_replay
from sordino.privacy.audit.findings import SURE, Finding
from sordino.privacy.audit.watching import Passage
from sordino.privacy.ledger import Row
from sordino.privacy.views import VIEWS

RISK = (1 - SURE) / 100
"""The risk of a false alarm of one test: there are a few dozen."""
ROWS = 300
"""How many draws of one kind are compared with each other, each with each."""
NARROW = 16
"""Draws of fewer numbers are compared by looking for equal ones."""
EQUAL = 1e-6


def findings(runs: Sequence[Recorded]) -> list[Finding]:
    """What does not conform, of several runs of one experiment."""
    found: list[Finding] = []
    for check in (_variances, _independence, _norms, _coins, _charges, _sizes, _channels):
        found += check(runs)
    return found


def kinds(runs: Sequence[Recorded]) -> dict[str, list[Passage]]:
    """Passages by release; noisy gradients are one kind."""
    found: dict[str, list[Passage]] = {}
    for run in runs:
        for passage in run.mechanism.passages:
            kind = "gradient" if passage.purpose[0] == "gradient" else str(passage.purpose[1])
            found.setdefault(kind, []).append(passage)
    return found


def _variances(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """The noise is as large as was declared: its squares add up to a chi-squared number."""
    for kind, passages in kinds(runs).items():
        noise = torch.cat([passage.residual() for passage in passages]).numpy()
        if not len(noise):
            continue
        total, count = float(np.square(noise).sum()), len(noise)
        ratio = math.sqrt(total / count)
        told = f"{kind}: its noise has {ratio:.3f} times the deviation that is charged ({count:,} numbers)"
        # Rounding to float32 changes a variance by a few parts in a million.
        if chi2.cdf(total * (1 + 2e-5), count) < RISK:
            yield Finding(0, "variance", f"{told}: less noise than is paid for.", refuted=True)
        elif chi2.sf(total * (1 - 2e-5), count) < RISK:
            yield Finding(0, "variance", f"{told}: more noise than was meant.")


def _independence(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """No draw comes twice: not in another round, at another client, in another run or after a resume."""
    for kind, passages in kinds(runs).items():
        by_width: dict[int, list[torch.Tensor]] = {}
        for passage in sorted(passages, key=lambda one: (one.number > 1, one.client)):
            noise = passage.residual()
            by_width.setdefault(len(noise), []).append(noise)
        for width, rows in by_width.items():
            twice = _twins(torch.stack(rows)) if width < NARROW else _correlated(torch.stack(rows[:ROWS]))
            if width and twice:
                yield Finding(0, "reuse", f"{kind}: the same noise came more than once ({twice}).", refuted=True)


def _twins(rows: torch.Tensor) -> str:
    """Whether many short draws are equal to another one."""
    values = np.sort(rows[:, 0].numpy())
    if len(values) < 4:
        return ""
    equal = int((np.diff(values) < EQUAL).sum())
    expected = len(values) ** 2 * EQUAL  # two normal numbers are so close with less probability than that
    return f"{equal} of {len(values)} draws" if equal > 5 + 10 * expected or equal > 0.2 * len(values) else ""


def _correlated(rows: torch.Tensor) -> str:
    """Whether two long draws are correlated."""
    if len(rows) < 2:
        return ""
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    products = (unit @ unit.t()).numpy()
    pairs = products[np.triu_indices(len(rows), 1)]
    worst = float(np.abs(pairs).max())
    limit = float(norm.isf(RISK / len(pairs) / 2)) / math.sqrt(rows.shape[1])
    return f"two draws of {rows.shape[1]} numbers have correlation {worst:.2f}" if worst > min(limit, 0.95) else ""


def _norms(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """What is noised is no longer than its bound."""
    for kind, passages in kinds(runs).items():
        ratio = max((float(p.before.double().norm()) / p.bound for p in passages if math.isfinite(p.bound)), default=0)
        if ratio > 1 + 1e-6:
            yield Finding(0, "norm", f"{kind}: a message is {ratio:.3g} times as long as is charged.", refuted=True)


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
        paid = {(row.question, row.release): row for row in run.ledger.rows if not row.exposed}
        steps = run.method.steps()
        counted = {
            (row.question, client): int(count)
            for row in run.ledger.rows
            if row.pool and steps[row.step][row.release].made_of_gradients
            for client, (_, _, count) in zip(row.clients().tolist(), row.histories(), strict=True)
        }
        for exchange in run.transcript.exchanges:
            number = exchange.question.number
            missing = [name for name in exchange.answer.values if (number, name) not in paid]
            if missing:
                yield Finding(0, "uncharged", f"{missing[0]} left and is not in the ledger.", refuted=True)
                return
        taken: dict[tuple[int, int], int] = {}
        for passage in run.mechanism.passages:
            if passage.purpose[0] == "gradient":
                key = (int(passage.purpose[1]), passage.client)
                taken[key] = taken.get(key, 0) + 1
            elif math.isfinite(passage.bound):
                row = paid.get((passage.purpose[0], passage.purpose[1]))
                if row is not None and _price(passage) > _paid(row, passage.client) * (1 + 1e-6):
                    yield Finding(
                        0,
                        "price",
                        f"{passage.purpose[1]}: mu^2 {_paid(row, passage.client):.4g} is charged for noise that costs "
                        f"{_price(passage):.4g}.",
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


def _price(passage: Passage) -> float:
    """What a message costs against the server by its noise, at the least: its whole bound where most noise is."""
    largest = float(passage.deviations.max())
    return math.inf if largest == 0 else 0.0 if passage.bound == 0 else (passage.bound / largest) ** 2


def _paid(row: Row, client: int) -> float:
    costs = row.costs()[VIEWS.index("server")]
    place = row.clients().tolist().index(client) if len(costs) > 1 else 0
    return float(costs[place])


def _sizes(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """What goes over the wire is as much as was declared, whatever the data are."""
    for exchange in runs[0].transcript.exchanges:
        declared = 0
        for name, rows in exchange.answer.values.items():
            release, clients = exchange.releases[name], len(rows)
            width, each = release.width(exchange.public), release.message_bytes(rows.shape[1], exchange.public)
            declared += clients * each
            if width is not None and rows.shape[1] != width:
                yield Finding(0, "bytes", f"{name}: {rows.shape[1]} entries left where {width} are declared.", True)
                return
        if declared != exchange.answer.bytes:
            yield Finding(0, "bytes", f"{exchange.answer.bytes} bytes left where {declared} are declared.", True)
            return


def _channels(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """The script's messages follow from what it has read."""
    told = check_replay(runs[0])
    if told is not None:
        yield Finding(0, "hidden channel", f"The method's script knows more than it was handed out: {told}.", True)
