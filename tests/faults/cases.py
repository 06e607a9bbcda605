"""Small experiments over all methods, and what an undisturbed run of each leaves behind."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import pickle
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from faults.processes import Outcome, command, count_into, options

Keys = dict[str, Any]
BASE: Keys = {
    **{"data": "digits", "clients": 6, "partition": "dirichlet:1", "model": "logistic", "rounds": 8},
    **{"noise_multiplier": 2.0, "workers": 1, "compiled": "never", "epochs": 1, "batch": 80},
}
FAILED = "and the run was taken up again: that it failed may tell of records"
"""End of the sentence on a step that failed in a run that was resumed."""
OWN = "faults.own:"
"""Beginning of the names of a user's own methods."""
FULL: Keys = {"batch": 1000}
"""Batches of all records: what they pay has a closed form, which is quick."""
SPECIAL: dict[str, Keys] = {
    "quantile clipping": {"method": "dp-fedavg", "clipping": "quantile", "engine": "stacked"},
    "median clipping": {"method": "dp-fedavg", "clipping": "median", "engine": "one-by-one", "workers": 2},
    "layer-wise clipping": {"method": "feddpa", "clipping": "layer-wise", "engine": "stacked", "workers": 2},
    "clipping by an agent": {"method": "dp-fedavg", "clipping": "ppo", "engine": "stacked"},
    "clipping by an agent on public records": {
        **{"method": "acdp-pfsd", "clipping": "ppo", "engine": "one-by-one"},
        **{"public": "holdout:0.1", "workers": 2},
    },
    "half of the clients": {"method": "feddpa", "participation": 0.5, "engine": "stacked"},
    "a third of the clients": {"method": "local", "participation": 0.34, "engine": "one-by-one", "workers": 2},
    "evaluated seldom": {"method": "fedavg", "evaluate_every": 3, "engine": "stacked"},
    "adam": {"method": "fedglp-adp", "optimizer": "adam", "rate": 0.001, "engine": "one-by-one"},
    "budgets by shares": {"method": "dp-fedavg-record", "budgets": "2:0.5,8:0.5", "partition": "iid", **FULL},
    "budgets that are used up": {
        **{"method": "dp-fedavg-record", "clients": 4, "rounds": 12, "participation": 0.25, "partition": "iid"},
        **{"budgets": "2.5,30,30,30", "noise_multiplier": 1.0},
    },
    "blends": {"method": "dp-fedavg", "personal": "blend", "engine": "stacked"},
    "blends of clusters": {"method": "dp-ifca", "personal": "blend", "engine": "one-by-one"},
    "blends of records": {"method": "dp-fedavg-record", "personal": "blend", "clients": 3, "rounds": 3, **FULL},
    "blends of a method that gives up": {"method": "faults.own:Plain", "last": 5, "personal": "blend"},
    "own method": {"method": "faults.own:Plain", "engine": "stacked"},
    "own method that gives up": {"method": "faults.own:Plain", "last": 5, "engine": "stacked"},
    "own method with ordered state": {"method": "faults.own:Odd", "engine": "stacked", "workers": 2},
    "own method with rare state": {"method": "faults.own:Rare", "engine": "one-by-one"},
}


@functools.cache
def cases() -> dict[str, Keys]:
    """All experiments by name: every method in every variant and engine, and special ones."""
    found: dict[str, Keys] = {}
    for method in command("methods", "--json").document:
        alone = method["unit"] == "record"
        for variant in method["variants"]:
            for engine in ["one-by-one"] if alone else ["stacked", "one-by-one"]:
                keys = {"method": method["name"], "variant": variant, "engine": engine}
                if alone:  # clients of one size pay alike, which is quicker to work out
                    keys |= {"partition": "iid", "rounds": 6, "clients": 3} | (FULL if variant == "paper" else {})
                if engine == "one-by-one" and variant == "paper":
                    keys["workers"] = 2
                found[f"{method['name']}, {variant}, {engine}"] = keys
    together = list((found | SPECIAL).items())
    random.Random(0).shuffle(together)  # so that a few trials see a bit of everything
    return {name: BASE | keys for name, keys in together}


@dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    store: Path
    name: str
    trace: dict[str, Any]
    seconds: float
    """How long the command takes here."""
    calls: int
    """How many watched calls it makes."""
    trained: int
    """Number of these calls until a client has written for the last time: behind them is the end of the run."""
    files: frozenset[str]
    """What lies in its folder at the end."""


@functools.cache
def reference(case: str) -> Reference:
    """The undisturbed run of an experiment."""
    return once(f"reference {case}", lambda folder: _reference(case, folder))


def _reference(case: str, folder: Path) -> Reference:
    keys, note = cases()[case], folder / "calls"
    counted = command("run", *options(keys), "--json", "--store", folder / "counted", first=_counted(note))
    begin = time.monotonic()
    made = command("run", *options(keys), "--json", "--store", folder / "store")
    seconds = time.monotonic() - begin
    for ended in (counted, made):
        if ended.code != 0:
            raise RuntimeError(f"The experiment {case!r} fails without any fault: {ended}\n{ended.err}")
    name = made.document["run"]
    store = folder / "store"
    calls, trained = (int(number) for number in note.read_text().split())
    return Reference(store, name, trace(store, name, made), seconds, calls, trained, files(store, name))


Made = TypeVar("Made")


def once(name: str, make: Callable[[Path], Made]) -> Made:
    """What `make` makes in a folder of its own: made by the first process that asks, for all of them."""
    folder = Path(tempfile.gettempdir(), hashlib.sha256(name.encode()).hexdigest()[:16])
    folder.mkdir(exist_ok=True)
    result = folder / "result"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_bytes(pickle.dumps(make(folder)))
        found: Made = pickle.loads(result.read_bytes())
    return found


def _counted(note: Path) -> Callable[[], None]:
    def first() -> None:
        checkpoints_every(0)
        count_into(note)()

    return first


def files(store: Path, name: str) -> frozenset[str]:
    """The names of what lies in a run's folder."""
    return frozenset(path.name for path in folder_of(store, name).iterdir())


def folder_of(store: Path, name: str) -> Path:
    """Where a run's files lie: the folder of its name."""
    found = [path for path in store.rglob(name) if path.is_dir()]
    if len(found) != 1:
        raise FileNotFoundError(f"The store {store} has no folder {name}.")
    return found[0]


def trace(store: Path, name: str, ended: Outcome) -> dict[str, Any]:
    """Everything that a finished run leaves behind, without its name and how long it took."""
    (database,) = store.glob("*.db")
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    found: dict[str, Any] = {}
    try:
        for table in ("rounds", "clients", "ledger"):
            rows = connection.execute(f"select * from {table} where run = ? order by rowid", (name,)).fetchall()
            found[table] = [{k: row[k] for k in row.keys() if k not in ("run", "seconds")} for row in rows]  # noqa: SIM118
    finally:
        connection.close()
    found["models"] = {path.name: path.read_bytes() for path in folder_of(store, name).glob("models*")}
    found["summary"] = {key: value for key, value in ended.document.items() if key not in ("run", "seconds")}
    return found


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """What two traces do not share, in words; None where they are equal."""
    odd = [key for key in one if json.dumps(one[key], default=repr) != json.dumps(other.get(key), default=repr)]
    return f"other {', '.join(odd)} than undisturbed" if odd else None


def ending(store: Path, name: str, ended: Outcome, expected: dict[str, Any], told: bool = False) -> str | None:
    """How a finished run differs from the undisturbed one; None where it does not.

    With `told` the run may say that something failed at a client: a user's own step could have ended its process for
    what its records hold, and nobody can tell that from a kill.
    """
    try:
        found = trace(store, name, ended)
        if told:
            lines = found["summary"]["not_covered"]
            found["summary"]["not_covered"] = [line for line in lines if not line.endswith(FAILED)]
        return difference(found, expected)
    except (sqlite3.Error, OSError, ValueError) as error:
        return f"what the run left behind cannot be read: {error!r}"


def checkpoints_every(seconds: float) -> None:
    """Let runs of this process save themselves so often."""
    from sordino.federation import server

    if not hasattr(server, "SAVE_SECONDS"):
        raise AttributeError("The product no longer says how often it saves runs: bring the harness up to date.")
    server.SAVE_SECONDS = seconds


def runs(store: Path) -> list[dict[str, Any]]:
    """The runs of a store, as the command line lists them."""
    found = command("runs", "--json", "--store", store)
    if found.code != 0:
        raise RuntimeError(f"`sordino runs` failed on an undamaged store: {found}\n{found.err}")
    listed: list[dict[str, Any]] = found.document
    return listed


def copied(store: Path, target: Path) -> Path:
    """A copy of a store."""
    shutil.copytree(store, target)
    return target
