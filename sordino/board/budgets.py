"""Epsilon that all runs of a store cost the people of each data set together, added up behind the page.

Sums over records' releases take a while, and so does loading what computes them. The page therefore shows the last sums
that are known, and says where they are being added up again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.board.look import StoreLook
from sordino.data.people import same_people
from sordino.errors import UserError
from sordino.store.store import RunRow, Store

if TYPE_CHECKING:  # the first page is there before torch would be loaded
    from sordino.store.spending import OverRuns, Spent

DELTA = 1e-5
"""Delta at which runs are added up where none of them is over and none was given one."""
REST = 10.0
"""Pause after sums, as a multiple of the time that they took."""


@dataclass(frozen=True)
class PeopleBudget:
    """Spending of one data set's people, as one unit."""

    data: str
    """Names of the data."""
    unit: str
    """Unit that the epsilon is about."""
    epsilon: float | None
    """Epsilon of all runs together; None where it is infinite."""
    view: str
    """Observer whom the epsilon is for."""
    limit: float | None
    """Limit that was set for all runs beforehand; None without one."""
    sentences: list[str]


@dataclass(frozen=True)
class Budgets:
    """Sums over the runs of a store."""

    found: list[PeopleBudget]
    problem: str | None = None
    """Sentence on why there are no sums."""


class BudgetWatch:
    """Sums that a thread brings up to date whenever a look at the store shows other runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._wanted: tuple[object, StoreLook] | None = None
        self._done: object = None
        self._found: Budgets | None = None
        self._spent: dict[object, Spent] = {}
        self._thread: threading.Thread | None = None

    def of(self, look: StoreLook) -> tuple[Budgets | None, bool]:
        """Return the newest sums, None before the first, and whether they are those of this look."""
        key = [_key(row) for row in look.rows]
        with self._changed:
            self._wanted = (key, look)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify()
            return self._found, self._done == key

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None and self._wanted[0] != self._done)
                assert self._wanted is not None
                key, look = self._wanted
            begun, known = time.monotonic(), self._found
            try:
                found = Budgets(self._sums(look.rows))
            except UserError as error:  # perhaps the store is busy: sums that were known stay, and it is tried again
                found, key = known if known is not None and known.problem is None else Budgets([], str(error)), None
            except Exception as error:  # the page says so, and the board goes on
                found = Budgets([], f"The runs cannot be added up ({type(error).__name__}: {error}).")
            with self._changed:
                self._found, self._done = found, key
            time.sleep(REST * min(6.0, max(0.05, time.monotonic() - begun)))

    def _sums(self, rows: list[RunRow]) -> list[PeopleBudget]:
        from sordino.store.spending import spending_on_people

        with contextlib.closing(Store(self._folder, must_exist=True, watched=True)) as store:
            known = {}
            for row in rows:
                key = _key(row)
                known[row.run] = self._spent.get(key) or spending_on_people(row, store)
                self._spent[key] = known[row.run]
        self._spent = {key: self._spent[key] for key in map(_key, rows)}
        return [one for group in groups_of(rows) for one in _budgets(group, known.__getitem__)]


def groups_of(rows: list[RunRow]) -> list[list[RunRow]]:
    """Runs of each data set's people: of files that were changed a little, too, so that a run may be in several."""
    found: dict[tuple[str, ...], list[RunRow]] = {}
    for people in dict.fromkeys(row.people for row in rows):
        group = [row for row in rows if same_people(row.people, people)]
        found.setdefault(tuple(row.run for row in group), group)
    return list(found.values())


def _budgets(rows: list[RunRow], spent_by: Callable[[str], Spent]) -> list[PeopleBudget]:
    """Sums over the runs of a group, for each unit that one of them protects."""
    from sordino.store.spending import add_up, spends

    costly = [row for row in rows if spends(spent_by(row.run))]
    data = ", ".join(dict.fromkeys(str(row.configuration.get("data")) for row in rows))
    found = []
    for unit in dict.fromkeys(row.unit for row in costly):
        mine = [row for row in costly if row.unit == unit]
        deltas = [delta for row in mine if (delta := _delta(row)) is not None]
        spent = [spent_by(row.run) for row in rows]
        found.append(_told(data, costly, add_up(rows, spent, unit, max(deltas, default=DELTA))))
    return found


def _told(data: str, costly: list[RunRow], total: OverRuns) -> PeopleBudget:
    from sordino.store.spending import describe_sum

    view: Any = total["limit_for"] or costly[0].configuration.get("protect_from") or "outsider"
    sentences = [describe_sum(total, view)]
    unfinished = sum(row.summary is None for row in costly)
    if unfinished:
        one = unfinished == 1
        sentences.append(
            f"{unfinished} of them {'is' if one else 'are'} under way or stopped, and "
            f"count{'s' if one else ''} with all that {'it' if one else 'they'} may come to spend."
        )
    return PeopleBudget(data, str(total["unit"]), total["epsilon"][view], str(view), total["limit"], sentences)


def _delta(row: RunRow) -> float | None:
    return (row.summary or {}).get("delta") or row.configuration.get("delta")


def _key(row: RunRow) -> tuple[Any, ...]:
    """Value that changes with what a run counts for."""
    return row.run, row.state, row.rounds_done, row.checkpoint, row.begun, row.given_up, row.created
