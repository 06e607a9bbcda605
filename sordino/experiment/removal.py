"""Removing a run from a store without forgetting what it cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sordino.experiment.lifetime import spent_in
from sordino.experiment.store import Store


def remove(run: str, store: Store) -> None:
    """Delete a run's models, checkpoints, journal and curves. Its people have paid for it all the same: that stays."""

    lost = not store.path(run).is_dir()  # whoever holds a run makes its folder

    def summed_up() -> dict[str, Any]:
        row = store.get(run)
        row = replace(row, state="stopped" if row.failed is None else "failed")  # held by nobody but us
        return {"run": run, **(row.summary or {}), "spent": spent_in(row, store, lost)}

    store.remove(run, summed_up)
