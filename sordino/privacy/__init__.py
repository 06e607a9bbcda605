"""Noise, clipping and accounting: the only place in Sordino where they happen."""

__all__ = [
    "accounting",
    "budget",
    "clipping",
    "gate",
    "gradients",
    "integers",
    "ledger",
    "mechanism",
    "noise",
    "release",
    "sealed",
    "unit",
    "views",
]
