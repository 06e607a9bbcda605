"""Tier 0 of an audit, the noise: is it everywhere as large as was declared, and is no draw used twice?

Inputs are known, so what left less what was to leave is the noise, which is looked at in units of its declared
deviation. Less of it at one client, in one question or on one entry would not show in the whole, so each is looked at
by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.stats import chi2, norm
from torch import Tensor

from sordino.auditing import record_canaries, sum_conformance
from sordino.auditing.findings import FLOAT32_SLACK, RISK, Finding
from sordino.auditing.recorded_run import Recorded
from sordino.auditing.recorder import RecordedRelease
from sordino.auditing.replay import ReplayPool
from sordino.privacy.ledger import Row
from sordino.privacy.views import VIEWS

MAX_COMPARED = 300
"""Most draws of one kind that are compared with each other."""
NARROW = 16
"""Draws of fewer numbers than this are compared by looking for equal numbers."""
EQUAL = 1e-6
"""Distance below which two numbers count as equal."""
AGREE, DIGITS = 4, 4
"""Two entries that agree to so many digits in so many draws have the same noise."""

Check = Callable[[Sequence[Recorded]], Iterator[Finding]]


def kinds(runs: Sequence[Recorded]) -> dict[str, list[RecordedRelease]]:
    """Passages by release; noisy gradients are one kind."""
    found: dict[str, list[RecordedRelease]] = {}
    for run in runs:
        for passage in run.mechanism.passages:
            kind = "gradient" if passage.purpose[0] == "gradient" else str(passage.purpose[1])
            found.setdefault(kind, []).append(passage)
    return found


def variances(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find noise that is not as large as was declared: its squares add up to a chi-squared number."""
    for kind, passages in kinds(runs).items():
        noise = torch.cat([passage.residual() for passage in passages]).numpy()
        if not len(noise):
            continue
        total, count = float(np.square(noise).sum()), len(noise)
        told = f"{kind}: its noise has {math.sqrt(total / count):.3f} times the deviation that is charged"
        if too_small(total, count) < RISK:
            yield Finding(0, "variance", f"{told} ({count:,} numbers): less noise than is paid for.", refuted=True)
        elif chi2.sf(total * (1 - FLOAT32_SLACK), count) < RISK:
            yield Finding(0, "variance", f"{told} ({count:,} numbers): more noise than was meant.")
        else:
            where = _missing_noise(passages)
            if where:
                yield Finding(0, "variance", f"{kind}: there is less noise than is paid for {where}.", refuted=True)


def too_small(total: float | np.ndarray, count: float | np.ndarray) -> np.ndarray:
    """Probability that `count` squares of noise add up to `total` or less."""
    return np.asarray(chi2.cdf(total * (1 + FLOAT32_SLACK), count))


def _missing_noise(passages: Sequence[RecordedRelease]) -> str:
    """Place with less noise than was declared, in words; empty if there is none."""
    parts: dict[str, dict[int, list[float]]] = {"at client": {}, "in question": {}}
    entries: dict[int, np.ndarray] = {}
    for passage in passages:
        squares, leaves = passage.squares(), (passage.deviations > 0).double().numpy()
        asked = passage.purpose[1] if passage.purpose[0] == "gradient" else passage.purpose[0]
        for part, place in (("at client", passage.client), ("in question", int(asked))):
            total = parts[part].setdefault(place, [0.0, 0.0])
            total[0] += float(squares.sum())
            total[1] += float(leaves.sum())
        counted = entries.setdefault(len(squares), np.zeros((2, len(squares))))
        counted += np.stack([squares, leaves])
    for part, places in parts.items():
        sums = np.array(list(places.values())).T
        found = np.flatnonzero((sums[1] > 0) & (too_small(*np.maximum(sums, [[0], [1]])) < RISK / len(places)))
        if len(found):
            return f"{part} {list(places)[found[0]]}"
    for width, sums in entries.items():
        found = np.flatnonzero((sums[1] > 0) & (too_small(*np.maximum(sums, [[0], [1]])) < RISK / width))
        if len(found):
            return f"on entry {found[0] + 1} of {width}, and on {len(found) - 1} others"
    return ""


def independence(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find draws that come twice: in another round, at another client, in another run, after a resume, for another
    release, or on another entry."""
    for kind, passages in kinds(runs).items():
        by_width: dict[int, list[torch.Tensor]] = {}
        for passage in sorted(passages, key=lambda one: (one.number > 1, one.client)):
            noise = passage.residual()
            if len(noise):
                by_width.setdefault(len(noise), []).append(noise)
        for width, rows in by_width.items():
            stacked = torch.stack(rows[:MAX_COMPARED] if width >= NARROW else rows)
            twice = (
                _equal_draws(stacked[:, 0].tolist())
                if width < NARROW
                else _correlated_draws(stacked) or _repeated_entries(stacked)
            )
            if twice:
                yield Finding(0, "reuse", f"{kind}: the same noise came more than once ({twice}).", refuted=True)
                return
    yield from _among_kinds(runs)


def _among_kinds(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find releases of one question that have the same noise."""
    firsts: dict[tuple[int, int, int], dict[str, float]] = {}
    for number, run in enumerate(runs):
        for kind, passages in kinds([run]).items():
            for passage in passages:
                noise = passage.residual()
                if passage.number == 0 and len(noise):
                    asked = passage.purpose[1] if passage.purpose[0] == "gradient" else passage.purpose[0]
                    firsts.setdefault((number, int(asked), passage.client), {})[kind] = float(noise[0])
    together = [list(one.values()) for one in firsts.values() if len(one) > 1]
    equal = sum(bool((np.diff(np.sort(np.abs(one))) < EQUAL).any()) for one in together)
    if equal > 2 and equal > 0.2 * len(together):
        yield Finding(0, "reuse", f"Releases of one question have the same noise ({equal} times).", refuted=True)


def _equal_draws(values: Sequence[float]) -> str:
    """Count of short draws that are equal to another one, in words; empty if there are few."""
    if len(values) < 4:
        return ""
    equal = int((np.diff(np.sort(values)) < EQUAL).sum())
    expected = len(values) ** 2 * EQUAL  # two normal numbers are so close with less probability than that
    return f"{equal} of {len(values)} draws" if equal > 5 + 10 * expected or equal > 0.2 * len(values) else ""


def _correlated_draws(rows: torch.Tensor) -> str:
    """Largest correlation of two long draws, in words; empty if none is suspicious."""
    if len(rows) < 2:
        return ""
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    products = (unit @ unit.t()).numpy()
    pairs = products[np.triu_indices(len(rows), 1)]
    worst = float(np.abs(pairs).max())
    limit = float(norm.isf(RISK / len(pairs) / 2)) / math.sqrt(rows.shape[1])
    return f"two draws of {rows.shape[1]} numbers have correlation {worst:.2f}" if worst > min(limit, 0.95) else ""


def _repeated_entries(rows: torch.Tensor) -> str:
    """Count of entries of a draw that have the noise of others up to the sign, in words; empty if there are none."""
    if len(rows) < AGREE:
        return ""
    entries = np.round(np.abs(rows[:AGREE].numpy().T), DIGITS)
    equal = len(entries) - len(np.unique(entries, axis=0))
    return f"{equal} of {len(entries)} entries have the noise of another" if equal else ""


def findings(runs: Sequence[Recorded], replays: ReplayPool) -> list[Finding]:
    """Findings on several runs of one experiment: everything that does not conform. The first run is replayed."""
    found: list[Finding] = []
    checks: list[Check] = [variances, independence, _norms, _bare_entries, _coins, _deals, _charges, _sizes]
    if runs[0].method.sends_sums():
        checks += [sum_conformance.shares, sum_conformance.prices]
        checks += [sum_conformance.coins, sum_conformance.contributions]
    else:
        checks.append(record_canaries.mixing)
    for check in checks:
        found += check(runs)
    return [*found, *_channels(runs[0], replays)]


def _norms(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find messages that are longer than their bound."""
    for kind, passages in kinds(runs).items():
        ratio = max((float(p.before.double().norm()) / p.bound for p in passages if math.isfinite(p.bound)), default=0)
        if ratio > 1 + 1e-6:
            yield Finding(0, "norm", f"{kind}: a message is {ratio:.3g} times as long as is charged.", refuted=True)


def _bare_entries(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find entries that leave without noise."""
    for kind, passages in kinds(runs).items():
        if any(passage.bare() for passage in passages if passage.price < math.inf):
            yield Finding(0, "bare", f"{kind}: some of its entries leave without noise.", refuted=True)


def _coins(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find batches into which records do not enter by independent coins of the declared rate."""
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


def _deals(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find batches to which records are not dealt once in a pass, or equally many to each."""
    for run in runs:
        seen: set[tuple[int, ...]] = set()
        for deal in run.source.deals:
            sizes = np.bincount(deal.batch_of.numpy(), minlength=deal.batches)
            if len(sizes) > deal.batches or sizes.max(initial=0) > sizes.min() + 1:
                yield Finding(0, "batches", f"A pass deals {sizes.max()} records to one of {deal.batches} batches.")
                return
            if deal.purpose in seen:
                yield Finding(0, "batches", "A pass over the records was dealt twice.", refuted=True)
                return
            seen.add(deal.purpose)


def _dispersion(taken: np.ndarray, count: np.ndarray, rate: np.ndarray) -> float:
    """Standard errors by which binomial numbers vary more, or less, than they should."""
    variance = count * rate * (1 - rate)
    squares = np.square(taken - count * rate) / variance
    errors = 2 + (1 - 6 * rate * (1 - rate)) / variance
    return float((squares - 1).sum() / math.sqrt(errors.sum()))


def _charges(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find messages that have no row in the ledger, or one at a lower price than their noise asks for."""
    for run in runs:
        rows = [row for row in run.ledger.rows if not row.exposed]
        paid, times = {(row.question, row.release): row for row in rows}, Counter((r.question, r.release) for r in rows)
        steps = run.method.steps()
        counted = {
            (row.question, client): (rate, int(count))
            for row in run.ledger.rows
            if row.pool and steps[row.step][row.release].made_of_gradients
            for client, (rate, _, count) in zip(row.clients().tolist(), row.histories(), strict=True)
        }
        dealt = {(int(deal.purpose[0]), int(deal.purpose[1])): deal.batches for deal in run.source.deals}
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
                begins = passage.number % dealt.get(key, 1) == 0  # of all sums of a pass a record is in one
                taken[key] = taken.get(key, 0) + begins
            elif math.isfinite(passage.bound):
                row = paid.get((passage.purpose[0], passage.purpose[1]))
                price = math.inf if row is None else _price_paid(row, passage.client)
                if passage.price > price * (1 + 1e-6):
                    yield Finding(
                        0,
                        "price",
                        f"{passage.purpose[1]}: mu^2 {price:.4g} is charged for noise that costs {passage.price:.4g}.",
                        refuted=True,
                    )
                    return
        more = {key: count for key, count in taken.items() if count > counted.get(key, (0.0, 0))[1]}
        if more:
            key, count = next(iter(more.items()))
            yield Finding(
                0,
                "steps",
                f"{count} noisy gradients passed where {counted.get(key, (0.0, 0))[1]} are charged.",
                refuted=True,
            )
            return
        if any(counted[key][0] < 1 for key in dealt if key in counted):
            yield Finding(0, "coins", "Batches that were dealt are charged as if by secret coins.", refuted=True)
            return


def _price_paid(row: Row, client: int) -> float:
    costs = row.costs()[VIEWS.index("server")]
    place = row.clients().tolist().index(client) if len(costs) > 1 else 0
    return float(costs[place])


def _sizes(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """Find messages that take more or fewer bytes than was declared, or need more."""
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
    """Fewest bytes that a message needs: four for each entry that is not zero, or as many bits for each entry as tell
    its different values apart."""
    bits = min(32, math.ceil(math.log2(max(1, len(row.unique())))))
    return min(4 * int(row.count_nonzero()), math.ceil(row.numel() * bits / 8))


def _channels(run: Recorded, replays: ReplayPool) -> Iterator[Finding]:
    """Find values besides noised ones, and those charged infinity, that depend on records."""
    for name, sentence in replays.replay(run).items():
        yield Finding(0, name, f"{sentence[0].upper()}{sentence[1:]}.", refuted=True)
