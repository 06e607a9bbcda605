"""Accounting: from noise, sampling and composition to epsilon, and back."""

from __future__ import annotations

import logging

import absl.logging  # before dp_accounting, so that the logger is absl's own

__all__ = [
    "across_runs",
    "calibration",
    "dominating_pairs",
    "gaussian",
    "loss_distribution",
    "rpdp_fl_calibration",
    "sampled_gaussian",
]


def _concerns_users(record: logging.LogRecord) -> bool:
    """Whether a line of absl's log is for users: errors are, and the accounting library's remarks are not."""
    return record.levelno >= logging.ERROR or "dp_accounting" not in record.pathname


absl.logging.get_absl_logger().addFilter(_concerns_users)
