"""A stored run's ledger, read back: its rows for export, and a check of the run's reported epsilon against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.privacy.ledger import Ledger, Row, head_of, split_attempt
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit, protection
from sordino.privacy.views import VIEWS
from sordino.store.journal import DamagedJournalError, rows_after
from sordino.store.store import RunRow, Store, unfinished
from sordino.util.formatting import finite_or_none

COLUMNS = (
    *("position", "question", "round", "step", "release", "clients", "owners", "pool"),
    *("sensitivity", *(f"noise_{view}" for view in VIEWS), "sampling_rate", "noise_multiplier", "times"),
    *("exposed", "not_covered", "told", "link"),
)
"""Columns of a row for other programs. Figures are those of the owner for whom the row costs most."""


@dataclass(frozen=True)
class Account:
    """A run and its ledger: everything that left its clients."""

    row: RunRow
    ledger: Ledger
    """Rows of the database, and of the journal if the run was stopped."""

    @classmethod
    def of(cls, store: Store, run: str) -> Account:
        """Read the ledger of a run; refuse one that was altered, or whose last rows were lost with the run's
        journal."""
        row = store.get(run)
        if row.gone and not row.has_result:
            raise unfinished(row, store.folder)
        try:
            return cls(row, ledger_of(row, store))
        except DamagedJournalError:
            if not went_on(row, store):
                raise
            return cls.of(store, run)

    @property
    def head(self) -> str:
        """Digest of the whole ledger, in hexadecimal: it changes with any row."""
        return self.ledger.head.hex()

    def protects(self) -> dict[str, str]:
        """Protected unit, neighbouring data sets that epsilon compares and, at record level, that a record is a row."""
        return protection(self.row.unit)

    def documents(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries with the keys of COLUMNS."""
        pairs = zip(self.ledger.rows, self.ledger.links, strict=True)
        return [row_document(position, row, link) for position, (row, link) in enumerate(pairs)]

    def epsilon(self) -> dict[str, float | None]:
        """Compute epsilon for each observer from the rows; None where it is infinite or the run has no delta yet."""
        if self.row.result is None:
            return dict.fromkeys(VIEWS)
        return {view: finite_or_none(value) for view, value in self.ledger.epsilon(self.row.result.delta).items()}

    def disagreements(self) -> list[str]:
        """Return a sentence on each figure of the run's result that contradicts its ledger."""
        if self.row.result is None:
            return []
        result = self.row.result
        found, printed, said = self.epsilon(), result.epsilon, result.charged or result.epsilon
        return [
            f"For the {view} the result says epsilon = {said[view]}, and the ledger {found[view]}."
            for view in VIEWS
            if not _agree(said[view], found[view])
        ] + [
            f"For the {view} the result prints epsilon = {printed[view]}, less than the {said[view]} that was charged."
            for view in VIEWS
            if printed[view] is not None and (said[view] is None or printed[view] < said[view])  # type: ignore[operator]
        ]


def ledger_of(row: RunRow, store: Store, journal: bool = True) -> Ledger:
    """Read the ledger of a run: rows of the database and, if the run was stopped and `journal` is true, of the
    journal."""
    rows = store.ledger(row.run)
    if journal and row.summary is None:
        head = head_of(rows, store.lacking)
        rows += rows_after(store.path(row.run), len(rows), head, row.begun, store.lacking)
    last = max((int(one.clients().max()) for one in rows), default=-1) + 1
    return Ledger(max(last, row.result.clients if row.result else 0), row.unit, rows, sites_per_person(row))


def sites_per_person(row: RunRow) -> int:
    """Largest number of clients that one person is known to, as a run's experiment declares it; one where it protects
    no persons."""
    if row.unit is not Unit.PERSON:
        return 1
    table = row.configuration.get("table") or {}
    declared = row.configuration.get("max_sites_per_person") or table.get("max_sites_per_person") or 1
    return int(declared)


def went_on(row: RunRow, store: Store) -> bool:
    """Whether a run has advanced since `row` was read, so that the journal which it had then is gone."""
    places = [(one.checkpoint, one.models, one.summary is None) for one in (row, store.get(row.run))]
    return places[0] != places[1]


def is_paid_elsewhere(row: Row) -> bool:
    """Whether a row costs nothing by itself, because another row pays for what left."""
    return not (row.pool or row.reason or row.exposed or np.frombuffer(row.sensitivity, dtype="<f8").any())


def _agree(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= 1e-6 * max(1.0, abs(one))


def row_document(position: int, row: Row, link: bytes) -> dict[str, Any]:
    """A row as a dictionary with the keys of COLUMNS; `link` is its link of the chain."""
    clients = row.clients()
    sensitivity = np.frombuffer(row.sensitivity, dtype="<f8")
    noise = np.frombuffer(row.noise, dtype="<f8").reshape(-1, len(VIEWS))
    costly = int(np.argmax(row.costs()[-1]))
    found: dict[str, Any] = {
        "position": position,
        "question": split_attempt(row.question)[0],
        "round": row.round + 1,
        "step": row.step,
        "release": row.release,
        "clients": len(clients),
        "owners": spans(clients),
        "pool": row.pool,
        "sensitivity": None if row.sampled else float(sensitivity[min(costly, len(sensitivity) - 1)]),
    }
    for place, view in enumerate(VIEWS):
        met = float(noise[min(costly, len(noise) - 1), place])
        found[f"noise_{view}"] = None if row.sampled else finite_or_none(met)
    rate, multiplier, times = _sampling(row)
    return found | {
        "sampling_rate": rate,
        "noise_multiplier": multiplier,
        "times": times,
        "exposed": row.exposed,
        "not_covered": row.reason,
        "told": row.told,
        "link": link.hex(),
    }


def _sampling(row: Row) -> tuple[float | None, float | None, int | None]:
    """Return sampling rate, noise multiplier of one message and number of releases of the owner with the least noise;
    None unless the row is of sampled gradients."""
    if not row.sampled or row.pool == PROMISED:
        return None, None, None
    histories = row.histories()
    rate, multiplier, times = histories[int(np.argmin(histories[:, 1]))]
    return float(rate), float(multiplier), int(times)


def spans(numbers: Sequence[int] | np.ndarray) -> str:
    """Abbreviate client numbers: `0-99 105`."""
    ordered = np.sort(np.asarray(numbers))
    if not len(ordered):
        return ""
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return " ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
