"""Shamir's secret sharing: any t of n shares give the secret back, fewer reveal nothing about it.

Secrets are numbers below the prime 2^256 - 189. A share is a value of a random polynomial of degree t - 1 whose value
at zero is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

FIELD = 2**256 - 189
"""The largest prime of 256 bits."""
SHARE_BYTES = 32


class SharingError(ValueError):
    """Shares are too few, out of range, or not of one secret."""


def new_secret() -> int:
    """Draw a uniform number below the prime."""
    return secrets.randbelow(FIELD)


def split(secret: int, threshold: int, places: Sequence[int]) -> list[int]:
    """Split a secret into one share for each place.

    Args:
        secret: Number below the prime.
        threshold: Number of shares that give the secret back.
        places: Distinct non-zero numbers at which the polynomial is evaluated.
    """
    if not 1 <= threshold <= len(places):
        raise SharingError(f"A secret cannot be split into {len(places)} shares of which {threshold} are needed.")
    if len({place % FIELD for place in places} - {0}) < len(places):
        raise SharingError("The points at which shares are evaluated must be distinct and not zero.")
    coefficients = [secret, *(secrets.randbelow(FIELD) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, place) for place in places]


def combine(shares: Mapping[int, int], threshold: int) -> int:
    """Recover a secret from `shares`, a map from places to shares. Shares beyond `threshold` must agree."""
    if len(shares) < threshold:
        raise SharingError(f"{len(shares)} shares of a secret were given, but {threshold} are needed.")
    if not all(0 <= share < FIELD for share in shares.values()):
        raise SharingError("A share is not a number below the prime.")
    places = tuple(sorted(shares))
    used, others = places[:threshold], places[threshold:]
    for other in others:
        if _interpolate(shares, used, other) != shares[other]:
            raise SharingError("The shares do not belong to one secret.")
    return _interpolate(shares, used, 0)


def _evaluate(coefficients: Sequence[int], place: int) -> int:
    """Value of a polynomial at `place`, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % FIELD
    return value


def _interpolate(shares: Mapping[int, int], used: tuple[int, ...], at: int) -> int:
    """Value `at` a place of the polynomial through the shares at the places `used`."""
    return sum(shares[place] * weight for place, weight in zip(used, _weights(used, at), strict=True)) % FIELD


@lru_cache(maxsize=4096)
def _weights(places: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange weights with which the values at `places` give the value `at` another place."""
    found = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * (at - other) % FIELD, below * (place - other) % FIELD
        found.append(above * pow(below, -1, FIELD) % FIELD)
    return tuple(found)
