"""Runs that are killed at a chosen moment, and everything that a run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.api import resume, run
from sordino.federation.rounds import RoundReport
from sordino.store.store import Store


def trace(store: Path, name: str) -> dict[str, Any]:
    """Everything that a run leaves behind, without its name and how long it took."""
    database = sqlite3.connect(store / "sordino.db")
    database.row_factory = sqlite3.Row

    def table(which: str, *without: str) -> list[dict[str, Any]]:
        rows = database.execute(f"select * from {which} where run = ? order by rowid", (name,))
        return [{key: row[key] for key in row.keys() if key not in ("run", *without)} for row in rows]  # noqa: SIM118

    (summary,) = database.execute("select summary from runs where run = ?", (name,)).fetchone()
    models = (store / "runs" / name / "models.safetensors").read_bytes()
    found = {
        "summary": {key: value for key, value in json.loads(summary).items() if key not in ("run", "seconds")},
        "models": models,
        "rounds": table("rounds", "seconds"),
        "clients": table("clients"),
        "ledger": table("ledger"),
    }
    database.close()
    return found


def killed(action: Callable[[], object]) -> bool:
    """Do `action` in a copy of this process; whether it was killed on the way."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def stopped(store: Path, after: int, name: str | None = None, **keys: Any) -> str:
    """Name of a run with `keys` that was stopped after so many rounds, or of the run `name` that was stopped again."""

    def stop(report: RoundReport) -> None:
        if report.round + 1 == after:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=stop, **keys) if name is None else resume(name, store, watch=stop)
    return Store(store).all()[0].run


def die_at(owner: Any, name: str, call: int, when: str) -> None:
    """From now on, the given call of a function kills this process, before or after it has done its work.

    `halfway` it has done it with half of its last argument.
    """
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def dying(*arguments: Any, **keywords: Any) -> Any:
        last = next(calls) == call
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if last and when == "halfway":
            arguments = (*arguments[:-1], arguments[-1][: len(arguments[-1]) // 2])
        result = original(*arguments, **keywords)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait until something has happened; `what` says what never did."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError(f"It never happened: {what}.")
