"""Noise, clipping and accounting: the only place in Sordino where they happen."""

from __future__ import annotations

import logging

import absl.logging  # first, so that the logger is absl's own

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
    "views",
]


def _concerns_users(record: logging.LogRecord) -> bool:
    """Whether a line of absl's log is for whoever runs an experiment: what the accounting library mutters is not."""
    return record.levelno >= logging.ERROR or "dp_accounting" not in record.pathname


absl.logging.get_absl_logger().addFilter(_concerns_users)
