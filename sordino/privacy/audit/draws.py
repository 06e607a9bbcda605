"""Tier 0, the noise by itself: is it everywhere as large as was declared, and is no draw used twice?

Inputs are known, so what left less what was to leave is the noise, which is looked at in units of its declared
deviation. Less of it at one client, in one question or on one entry would not show in the whole, so each is looked at
by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.stats import chi2, norm

from sordino.privacy.audit.federation import Recorded
from sordino.privacy.audit.findings import SURE, Finding
from sordino.privacy.audit.watching import Passage

RISK = (1 - SURE) / 1000
"""The risk of a false alarm of one test: there are a few dozen in an audit, and audits are made by the thousand."""
ROUNDED = 2e-5
"""By how much rounding to float32 changes a variance at the most."""
ROWS = 300
"""How many draws of one kind are compared with each other, each with each."""
NARROW = 16
"""Draws of fewer numbers are compared by looking for equal ones."""
EQUAL = 1e-6
"""How close two numbers are that count as equal."""
AGREE, DIGITS = 4, 4
"""Two entries that agree to so many digits in so many draws have the same noise."""


def kinds(runs: Sequence[Recorded]) -> dict[str, list[Passage]]:
    """Passages by release; noisy gradients are one kind."""
    found: dict[str, list[Passage]] = {}
    for run in runs:
        for passage in run.mechanism.passages:
            kind = "gradient" if passage.purpose[0] == "gradient" else str(passage.purpose[1])
            found.setdefault(kind, []).append(passage)
    return found


def variances(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """The noise is as large as was declared: its squares add up to a chi-squared number."""
    for kind, passages in kinds(runs).items():
        noise = torch.cat([passage.residual() for passage in passages]).numpy()
        if not len(noise):
            continue
        total, count = float(np.square(noise).sum()), len(noise)
        told = f"{kind}: its noise has {math.sqrt(total / count):.3f} times the deviation that is charged"
        if too_small(total, count) < RISK:
            yield Finding(0, "variance", f"{told} ({count:,} numbers): less noise than is paid for.", refuted=True)
        elif chi2.sf(total * (1 - ROUNDED), count) < RISK:
            yield Finding(0, "variance", f"{told} ({count:,} numbers): more noise than was meant.")
        else:
            where = _missing(passages)
            if where:
                yield Finding(0, "variance", f"{kind}: there is less noise than is paid for {where}.", refuted=True)


def too_small(total: float | np.ndarray, count: float | np.ndarray) -> np.ndarray:
    """How probable it is that so many squares of noise add up to so little."""
    return np.asarray(chi2.cdf(total * (1 + ROUNDED), count))


def _missing(passages: Sequence[Passage]) -> str:
    """Where there is less noise than was declared, in words; empty if nowhere."""
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
    """No draw comes twice: not in another round, at another client, in another run, after a resume, for another
    release, or on another entry."""
    for kind, passages in kinds(runs).items():
        by_width: dict[int, list[torch.Tensor]] = {}
        for passage in sorted(passages, key=lambda one: (one.number > 1, one.client)):
            noise = passage.residual()
            if len(noise):
                by_width.setdefault(len(noise), []).append(noise)
        for width, rows in by_width.items():
            stacked = torch.stack(rows[:ROWS] if width >= NARROW else rows)
            twice = _equal(stacked[:, 0].tolist()) if width < NARROW else _correlated(stacked) or _repeated(stacked)
            if twice:
                yield Finding(0, "reuse", f"{kind}: the same noise came more than once ({twice}).", refuted=True)
                return
    yield from _among_kinds(runs)


def _among_kinds(runs: Sequence[Recorded]) -> Iterator[Finding]:
    """The noise of a release is not that of another of the same question."""
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


def _equal(values: Sequence[float]) -> str:
    """Whether many short draws are equal to another one."""
    if len(values) < 4:
        return ""
    equal = int((np.diff(np.sort(values)) < EQUAL).sum())
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


def _repeated(rows: torch.Tensor) -> str:
    """Whether entries of a draw have the noise of others, up to the sign."""
    if len(rows) < AGREE:
        return ""
    entries = np.round(np.abs(rows[:AGREE].numpy().T), DIGITS)
    equal = len(entries) - len(np.unique(entries, axis=0))
    return f"{equal} of {len(entries)} entries have the noise of another" if equal else ""
