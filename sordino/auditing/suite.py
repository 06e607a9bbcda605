"""A whole audit: tiers 0 to 3 (noise checks, canaries, one-run canaries, side channels), and each observer's bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from sordino.auditing import client_canaries, conformance, one_run, record_canaries, side_channels, sum_canaries
from sordino.auditing.findings import SURE, Attack, Report, ViewReport
from sordino.auditing.recorded_run import Recorded, record
from sordino.auditing.replay import ReplayPool
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import called
from sordino.experiment.prepare import Prepared, prepare
from sordino.method import Method
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View

if TYPE_CHECKING:  # an audit on this machine loads nothing of a cluster
    from sordino.cluster.connection import Cluster, PerRun
    from sordino.cluster.packing import Packed

TRIALS = 100_000
ALL_TIERS = (0, 1, 2, 3)
COPIES = {Unit.CLIENT: 2000, Unit.RECORD: 400}
"""Number of copies of one client that are looked at for side channels, by unit."""
Tell = Callable[[str], None]


def audit(
    experiment: Experiment,
    trials: int = TRIALS,
    tiers: Collection[int] = ALL_TIERS,
    tell: Tell = lambda sentence: None,
) -> Report:
    """Attack what an experiment's method claims; nothing is written, and no client's budget is spent.

    Args:
        experiment: the experiment.
        trials: trials of tier 1.
        tiers: tiers of the audit to go through, of 0 to 3.
        tell: receives a sentence on each step.
    """
    return audit_prepared(prepare(experiment), trials, tiers, tell)


def audit_prepared(
    prepared: Prepared,
    trials: int = TRIALS,
    tiers: Collection[int] = ALL_TIERS,
    tell: Tell = lambda sentence: None,
) -> Report:
    """Attack an experiment that is ready to start; arguments as for `audit`."""
    begun = time.monotonic()
    method, delta = prepared.method, prepared.budget.delta
    replays = ReplayPool(prepared) if 0 in tiers else None
    tell("a run in which everything that leaves is written down")
    first = record(prepared)
    truths = first.ledger.epsilon(delta)
    published = published_claim(prepared)
    views = {
        view: ViewReport(truths[view]) if published is None else ViewReport(published, truths[view]) for view in VIEWS
    }
    report = Report(
        prepared.experiment.method,
        method.variant,
        prepared.unit,
        delta,
        views,
        called=called(dict(prepared.experiment)),
    )
    if replays is not None:
        tell("tier 0: noise, bounds, sampling and charges")
        half = max(0, prepared.schedule.rounds // 2 - 1)
        second = record(prepared, number=2, stop_after=half, loses=method.sends_sums())
        report.findings += conformance.findings([first, second], replays)
        replays.close()
    risk = (1 - SURE) / max(1, len({1, 2, 3} & set(tiers)))  # of all attacks together
    if 1 in tiers and method.is_private():
        tell(f"tier 1: membership attacks on the mechanism, for one {prepared.unit}")
        report.trials = _attack_mechanism(first, trials, views, risk)
    if 2 in tiers and method.is_private():
        tell("tier 2: canaries in one real run")
        found, told = one_run.attacks(first, risk=risk)
        report.findings += told
        _add(found, views)
    if 3 in tiers and any(method.steps().values()):
        tell("tier 3: side channels")
        _add(side_channels.attacks(first, COPIES[method.unit], risk=risk), views)
    report.seconds = time.monotonic() - begun
    return report


def audit_on(
    cluster: Cluster,
    per_run: PerRun,
    experiment: Experiment,
    trials: int = TRIALS,
    tiers: Collection[int] = ALL_TIERS,
    tell: Tell = lambda sentence: None,
) -> Report:
    """Have a node of a cluster `audit` an experiment, whose data come from here."""
    from sordino.cluster.node import prepared_for_nodes
    from sordino.cluster.study import run_there

    prepared = prepare(experiment)
    tell(f"the audit is under way on a node of the cluster {cluster.address}")
    packed = prepared_for_nodes(prepared)
    report: Report = run_there(cluster, per_run, _audit_there, packed, prepared.compiled is not None, trials, tiers)
    return report


def _audit_there(packed: Packed, compiles: bool, trials: int, tiers: Collection[int]) -> Report:
    """Audit an experiment on a node; `compiles` says whether its steps had been compiled."""
    from sordino.cluster.node import unpack_prepared
    from sordino.experiment.run import compiled

    torch.set_num_threads(1)
    prepared = unpack_prepared(packed)
    return audit_prepared(compiled(prepared) if compiles else prepared, trials, tiers)


def _attack_mechanism(first: Recorded, trials: int, views: dict[View, ViewReport], risk: float) -> int:
    """Go through tier 1; the number of trials that were made."""
    if first.method.sends_sums():
        found = sum_canaries.attacks(first, trials, risk=risk)
    elif not first.method.unit.record_level:
        trials = client_canaries.affordable_trials(first, trials)
        found = client_canaries.attacks(first, trials, risk=risk)
    else:
        found = record_canaries.attacks(first, trials, {view: one.claimed for view, one in views.items()}, risk=risk)
    _add(found, views)
    return trials


def _add(found: Sequence[Attack], views: dict[View, ViewReport]) -> None:
    for attack in found:
        views[attack.view].add(attack)


def published_claim(prepared: Prepared) -> float | None:
    """Epsilon that the paper claims for its mechanism, the largest where clients have budgets of their own; None where
    the run is not of a published mechanism, or has a given noise multiplier."""
    method, experiment = prepared.method, prepared.experiment
    accounts = type(method).published_multiplier is not Method.published_multiplier
    if method.variant != "paper" or not (accounts or "paper" in method.caveats):
        return None
    if experiment.noise_multiplier is not None:
        return None
    plan = prepared.allowance.records
    return experiment.asked_epsilon if plan is None else float(plan.budgets.max())
