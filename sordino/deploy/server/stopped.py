"""Summary of a deployed run that was stopped before its end: what its sites may have paid for."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from sordino.deploy.server.coordinator import add_disclosed, deployed_experiment
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.terms import terms_of
from sordino.experiment.result import summarize
from sordino.federation.run_state import Ending, Restored
from sordino.privacy.ledger import Ledger
from sordino.store.run_files import RunFiles
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.trained.models import Description


@dataclass(frozen=True)
class _Files:
    """Figures of a run that `summarize` takes from its open files."""

    ledger: Ledger
    seconds: float
    uploaded: int
    received: int | None
    deal: str | None
    start: float = math.nan


def summarize_stopped(run: str, store: Store, ledger: Ledger) -> tuple[Summary, Description]:
    """Summary of a stopped run, and a description of the models that it would have made.

    Epsilon is that of the whole plan: whoever stopped the run may have seen what had left before.

    Args:
        run: Name of the run.
        store: Its store.
        ledger: Everything that has left.
    """
    row, terms = store.get(run), terms_of(deployed_experiment(run, store))
    with contextlib.closing(DeploymentJournal(store.path(run))) as journal:
        names = [name for name, _ in journal.fact("roster")]
        notes, trial_of = journal.fact("notes") or [], journal.fact("trial_of")
        disclosed = journal.fact("disclosed")
    paid = terms.ledger(ledger.rows)
    uploaded = sum(one["bytes"] for one in store.curve(run))
    files = _Files(paid, row.seconds, uploaded, None, (row.planned or {}).get("deal"))
    ending = Ending(Restored({}, row.rounds_done, 0), None, None, {}, [], as_scheduled=False)
    summary = summarize(run, terms, ending, cast(RunFiles, files), names, np.full(len(names), np.nan))
    summary = replace(summary, deployed=True, trial_of=trial_of, notes=[*notes, *summary.notes])
    return add_disclosed(summary, disclosed), terms.described(run, names)
