"""Removing a run from a store without forgetting what it cost."""

from __future__ import annotations

from sordino.experiment.lifetime import spent_in
from sordino.experiment.store import Store


def remove(run: str, store: Store) -> None:
    """Delete a run's models, checkpoints, journal and curves. Its people have paid for it all the same: that stays."""
    row = store.get(run)
    store.remove(run, {"run": run, **(row.summary or {}), "spent": spent_in(row, store)})
