"""Description of each run in a list: data, budget, epsilon and accuracy. It loads no library, so that a list of runs
is on the screen at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.errors import UserError
from sordino.experiment.defaults import DEFAULT_EPSILON
from sordino.store.store import RunRow, Store

KEYS = ("run", "method", "state", "rounds_done", "rounds")


def charges(found: Sequence[RunRow], folder: Path) -> dict[str, float]:
    """Lower bounds of the epsilon charged so far by unfinished runs, by name: that of the last stored round which has
    one; none for a run that failed at a client.

    Later charges are in journals, which are not read, so that the list appears at once.
    """
    charged: dict[str, float] = {}
    unfinished = [row for row in found if row.summary is None and row.failed is None]
    if not unfinished:
        return charged
    with contextlib.closing(Store(folder, must_exist=True)) as store:
        for row in unfinished:
            with contextlib.suppress(UserError):  # whoever takes a damaged run up is told
                told = (one[f"epsilon_{row.configuration['protect_from']}"] for one in store.curve(row.run))
                known = [epsilon for epsilon in told if epsilon is not None]
                charged |= {row.run: known[-1]} if known else {}
    return charged


def describe_run(row: RunRow, charged: Mapping[str, float]) -> dict[str, Any]:
    """Document of a run in the list; figures that are infinite or not known yet are None."""
    given = row.configuration
    accuracy = (row.summary or {}).get("accuracy", {})
    return {
        **{key: getattr(row, key) for key in KEYS},
        **{key: given.get(key) for key in ("data", "seed", "variant", "personal", "clients", "protect_from", "set")},
        "unit": row.unit,
        "budget": _budget(row),
        "epsilon": _epsilon(row),
        "charged_at_least": charged.get(row.run),
        "accuracy": accuracy.get("personal"),
        "auc": auc_of(row),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(row.created)),
        "seconds": row.seconds,
    }


def auc_of(row: RunRow) -> float | None:
    """Area under the curve of a run's personal models, where there are two classes; None else."""
    found = row.summary or {}
    if found.get("positive") is None or not found.get("metrics"):
        return None
    auc: float | None = found["metrics"].get("auc", {}).get("mean")
    return auc


def _epsilon(row: RunRow) -> float | None:
    """Epsilon that a run counts as; None where it is infinite or not known yet.

    A run that was stopped, or removed before it was done, counts as planned, because answers may have chosen its end.
    The charged amount is larger only where a method asks for more than it declares.
    """
    summary = row.summary or {}
    if "epsilon" in summary:
        found: float | None = summary["epsilon"].get(row.configuration.get("protect_from"))
        return found
    return (row.planned or {}).get("epsilon") if row.state != "running" and row.begun is not False else None


def _budget(row: RunRow) -> float | None:
    """Requested epsilon; None where noise was given instead, clients have budgets of their own, or nothing is
    noised."""
    given = row.configuration
    own = (f"{scope}budgets" for scope in ("", "method.", f"{row.method}."))
    noised = row.summary is None or row.summary.get("noise_multiplier") is not None
    if not noised or any((given.get("set") or {}).get(key) is not None for key in own):
        return None
    known = row.summary is not None and given.get("noise_multiplier") is None
    asked: float | None = given.get("epsilon")
    return asked or (DEFAULT_EPSILON if known else None)
