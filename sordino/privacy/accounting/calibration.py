"""Calibration: noise, sampling rates and numbers of rounds for a record's budget, with a cache on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy

from sordino.errors import UserError
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.accounting.loss_distribution import Sampled
from sordino.privacy.accounting.sampled_gaussian import Recipe, record_epsilon, sites_epsilon

SEARCH_CODE = ("dominating_pairs.py", "gaussian.py", "loss_distribution.py", "sampled_gaussian.py")
"""The files of this folder that decide where a search ends."""
CACHE_FILE = "places.txt"
MAX_CACHE_BYTES = 2**21
"""Largest size of the cache file in bytes; a larger one is deleted and begun anew."""


def cached_index(search: tuple[object, ...]) -> int | None:
    """Look up the index at which a search ended before; None where the cache does not say. It is a guess to start from,
    never trusted."""
    return _cached_indices(_folder()).get(_key(search))


def cache_index(search: tuple[object, ...], found: int) -> None:
    """Store the index at which a search ended. Failures to write are ignored: the search can be repeated."""
    folder, key = _folder(), _key(search)
    _cached_indices(folder)[key] = found
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CACHE_FILE
        if path.exists() and path.stat().st_size > MAX_CACHE_BYTES:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # Begun on a line of its own, in case that a writer before was cut off.
            os.write(handle, f"\n{key} {found}\n".encode())
        finally:
            os.close(handle)


def _key(search: tuple[object, ...]) -> str:
    return hashlib.sha256(f"{_version()} {_plain_numbers(search)!r}".encode()).hexdigest()


def _plain_numbers(argument: object) -> object:
    """An argument as Python's own numbers, which say all of their bits and are equal where those are."""
    if isinstance(argument, tuple):
        return tuple(_plain_numbers(one) for one in argument)
    if isinstance(argument, str):
        return argument
    return int(argument) if isinstance(argument, int | np.integer) else float(argument)  # type: ignore[arg-type]


@functools.cache
def _version() -> str:
    """Digest of the code and libraries that decide where a search ends besides its arguments."""
    code = b"".join((Path(__file__).parent / name).read_bytes() for name in SEARCH_CODE)
    return f"{hashlib.sha256(code).hexdigest()} {np.__version__} {scipy.__version__}"


def _folder() -> Path | None:
    named = os.environ.get("SORDINO_CACHE")
    if named is None:
        with contextlib.suppress(RuntimeError):  # nobody's home
            return Path.home() / ".cache" / "sordino"
        return None
    return Path(os.path.expanduser(named)) if named else None


@functools.lru_cache(maxsize=1)
def _cached_indices(folder: Path | None) -> dict[str, int]:
    """Indices by key, read from the cache file of a folder."""
    found: dict[str, int] = {}
    if folder is None:
        return found
    with contextlib.suppress(OSError):
        for line in (folder / CACHE_FILE).read_text(errors="replace").splitlines():
            key, _, said = line.partition(" ")
            with contextlib.suppress(ValueError):
                found[key] = int(said)
    return found


FINE = 1.0025
"""Ratio of neighbours on grids of noise multipliers and sampling rates: the multiplier at an index is FINE**index."""
MAX_MULTIPLIER = 2.0**40
"""More noise than that is asked for only where something else has used up the budget."""
LAST_INDEX = math.ceil(math.log(MAX_MULTIPLIER, FINE))
"""Its index on the grid of noise multipliers."""
MIN_RATE_SHARE = 1e-6
"""Smallest share of the largest sampling rate that a search goes down to: a budget that asks for less is refused."""


@functools.lru_cache(maxsize=65536)
def record_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, others: Recipe = (), sites: int = 1
) -> float:
    """Smallest noise multiplier, to a quarter of a percent, with which `steps` sampled steps stay within a budget.

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        rate: probability with which a record enters a batch.
        steps: number of noisy sums over all rounds.
        others: everything else that the records go through.
        sites: number of clients at which a person goes through all of this; one for records.
    """

    def excess(index: int) -> float:
        return excess_over((*others, (rate, FINE**index, steps)), epsilon, delta, _cost_at(sites))

    search = ("multiplier", epsilon, delta, rate, steps, others, *_more_than_one(sites))
    further = round(math.log(sites, FINE))  # without sampling, noise grows with their number
    index = _search(
        search,
        excess,
        lambda: likely_index(epsilon, delta, rate, steps, others) + further,
        -LAST_INDEX,
        LAST_INDEX,
    )
    if index is None:
        raise UserError(
            f"What the records go through besides training already costs epsilon {epsilon:g}: give a larger "
            "epsilon, or let the rest have a smaller share of it."
        )
    return FINE**index


@functools.lru_cache(maxsize=65536)
def record_rate(
    epsilon: float,
    delta: float,
    multiplier: float,
    steps: int,
    most: float = 1.0,
    others: Recipe = (),
    sites: int = 1,
) -> float:
    """Largest sampling rate up to `most`, to a quarter of a percent, at which `steps` steps stay within a budget.

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        multiplier: noise over sensitivity of one sum.
        steps: number of noisy sums over all rounds.
        most: largest sampling rate.
        others: everything else that the records go through.
        sites: number of clients at which a person goes through all of this; one for records.
    """

    def excess(index: int) -> float:
        return excess_over((*others, (most * FINE**-index, multiplier, steps)), epsilon, delta, _cost_at(sites))

    search = ("rate", epsilon, delta, multiplier, steps, most, others, *_more_than_one(sites))
    index = _search(search, excess, lambda: 0, 0, math.floor(-math.log(MIN_RATE_SHARE, FINE)))
    if index is None:
        raise UserError(
            f"With a noise multiplier of {multiplier:g} even a record that hardly ever enters a batch pays more than "
            f"epsilon {epsilon:g}: give more noise or a larger budget."
        )
    return most * FINE**-index


def affordable_turns(
    epsilon: float, delta: float, charge: Sampled, most: int, others: Recipe = (), sites: int = 1
) -> int:
    """Number of turns, up to `most`, that fit into a budget.

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        charge: sampling rate, noise multiplier and steps of one turn.
        most: largest number of turns.
        others: everything else that the records go through.
        sites: number of clients at which a person goes through all of this; one for records.
    """
    rate, multiplier, steps = charge

    def excess(fewer: int) -> float:
        recipe = (*others, (rate, multiplier, steps * (most - fewer)))
        return excess_over(recipe, epsilon * (1 + 1e-9), delta, _cost_at(sites))

    fewer = first_within(excess, 0, 0, most)
    return 0 if fewer is None else most - fewer


def _cost_at(sites: int) -> Callable[[Recipe, float], float]:
    """Accountant of one person at so many clients, or of one record."""
    return record_epsilon if sites == 1 else lambda recipe, delta: sites_epsilon((recipe,), sites, delta)


def _more_than_one(sites: int) -> tuple[int, ...]:
    """Part of a search's key: nothing for one client, as in caches of versions that knew no others."""
    return () if sites == 1 else (sites,)


def _search(
    search: tuple[object, ...], excess: Callable[[int], float], guess: Callable[[], int], low: int, high: int
) -> int | None:
    """Run `first_within` from where the same search ended before, or else from a guess."""
    known = cached_index(search)
    found = first_within(excess, guess() if known is None else known, low, high)
    if found is not None and found != known:
        cache_index(search, found)
    return found


def first_within(excess: Callable[[int], float], guess: int, low: int, high: int) -> int | None:
    """First whole number from `low` to `high` at which `excess`, which falls, is not above zero; None if there is none.

    It is looked for from a guess on, in steps that double, and then between two that lie on either side of it: where
    the line between them crosses zero, or in the middle where such steps get nowhere.
    """
    over = functools.cache(excess)
    inside = outside = min(max(guess, low), high)
    step = _stride(over(inside))
    while over(inside) > 0:
        if inside == high:
            return None
        outside, inside, step = inside, min(inside + step, high), 2 * step
    while over(outside) <= 0:
        if outside == low:
            return low
        inside, outside, step = outside, max(outside - step, low), 2 * step
    slow = False
    while inside - outside > 1:
        width, middle = inside - outside, (inside + outside) // 2
        slope = over(outside) - over(inside)
        if not slow and math.isfinite(slope) and slope > 0:
            # The crossing itself and its neighbour are tried, so that the search ends between them.
            crossing = outside + math.ceil(width * over(outside) / slope)
            middle = min(max(crossing, outside + 1), inside - 1)
        if over(middle) > 0:
            outside = middle
            if over(middle + 1) <= 0:
                return middle + 1
            outside = middle + 1
        else:
            inside = middle
            if over(middle - 1) > 0:
                return middle
            inside = middle - 1
        slow = inside - outside > width // 2
    return inside


def _stride(excess: float) -> int:
    """First stride of a search: epsilon is about proportional to the scale, so that its logarithm tells the
    distance."""
    return max(1, round(abs(excess) / math.log(FINE))) if math.isfinite(excess) else 256


def excess_over(
    recipe: Recipe, epsilon: float, delta: float, cost: Callable[[Recipe, float], float] = record_epsilon
) -> float:
    """Logarithm of the cost of a recipe over a budget: above zero where it does not fit.

    Args:
        recipe: sampled steps that the records go through.
        epsilon: budget of one record.
        delta: delta of the budget.
        cost: accountant: epsilon of a recipe at a delta.
    """
    spent = cost(recipe, delta)
    return math.log(spent / epsilon) if spent > 0 else -math.inf


def likely_index(epsilon: float, delta: float, rate: float, steps: int, others: Recipe) -> int:
    """Guess the index of the noise multiplier on its grid, by the central limit (Bu, Dong, Long, Su 2020).

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        rate: probability with which a record enters a batch.
        steps: number of noisy sums over all rounds.
        others: everything else that the records go through.
    """
    left = mu_of(epsilon, delta) ** 2 - sum(_central(*charge) for charge in others)
    if left <= 0 or not steps:
        return 0
    multiplier = math.sqrt(steps / left) if rate == 1 else 1 / math.sqrt(math.log1p(left / steps / rate**2))
    return round(math.log(multiplier, FINE))


def _central(rate: float, multiplier: float, count: int) -> float:
    """mu^2 of the one Gaussian that many such steps come close to."""
    return count / multiplier**2 if rate == 1 else count * rate**2 * math.expm1(min(multiplier**-2, 700.0))
