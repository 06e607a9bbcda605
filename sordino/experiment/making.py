"""One run of a study: from the store, if it is there; taken up, if it was stopped; else made."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume, start
from sordino.experiment.store import Store
from sordino.experiment.summary import Summary
from sordino.rounds import Watch


def made(
    experiment: Experiment,
    store: Store,
    watch: Watch | None = None,
    begun: Callable[[str], None] | None = None,
) -> Summary:
    """The summary of an experiment's run; `begun` is told the name of one that is new."""
    prepared = prepare(experiment)
    for row in store.all():
        if row.identity == prepared.identity and row.state in ("stopped", "failed", "done"):
            return cast(Summary, row.summary) if row.summary else resume(row.run, store, watch, experiment.workers)
    return start(prepared, store, watch, begun)
