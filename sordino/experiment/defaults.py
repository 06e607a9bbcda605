"""Defaults of an experiment, among them what is recommended where it names no method; and the states of runs.

It imports no library, so that a list of runs can tell it at once.
"""

from pathlib import Path
from shlex import quote
from typing import Any, Literal

DEFAULT_EPSILON = 8.0
DEFAULT_STORE = Path(".sordino")
AT_SITES = "the sites' own data"
"""Name of the data in what is stored of a deployment: servers do not know what sites call theirs."""
RunState = Literal["running", "stopped", "failed", "done", "removed", "imported"]
RECOMMENDED: dict[str, Any] = {"method": "dp-fedavg", "personal": "blend", "set": {"clipping": "quantile"}}
"""Settings of an experiment that names no method: our comparisons recommend them (`sordino advise`, experiments/)."""
FOR_TABLES: dict[str, Any] = {
    **{"method": "dp-fedsgd", "model": "logistic", "rounds": 60, "personal": "recalibrate"},
}
"""Settings of an experiment that names no method, for tables at a few sites: experiments/tables.py measured them."""
COMPARED = ("local", "dp-fedavg", "dp-fedavg[personal=blend]")
"""Methods that a comparison has where none are named; for tables at a few sites it has others."""
FEW_SITES = 50
"""Most sites at which records are protected by default. The noise that hides one site among so few leaves little of a
model (`sordino advise`); where there are more, a client is more often a single person, whom a promise to each record
does not protect."""
LEAST_RECORDS = 20
"""Fewest training records of the site in the middle at which records are protected by default: a client with fewer may
be one person."""


def for_tables(shape: tuple[int, ...] | None, sites: int, records: float | None) -> bool:
    """Whether data are tables at a few sites, for which an experiment that names no method has `FOR_TABLES`.

    Args:
        shape: shape of one record; a row of numbers has one dimension, an image more. None where it is not known.
        sites: number of clients.
        records: training records of the client in the middle; None where they are not known.
    """
    rows = shape is not None and len(shape) == 1
    return rows and sites <= FEW_SITES and records is not None and records >= LEAST_RECORDS


def in_store(folder: Path) -> str:
    """The option with which a command finds a store; nothing where it looks there anyway."""
    return "" if folder == DEFAULT_STORE else f" --store {quote(str(folder))}"
