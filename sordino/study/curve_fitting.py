"""PAC-DP's offline phase (its Algorithm 2): simulate on public data, and fit the curve from budgets to clipping
thresholds.

The simulated method is PAC-DP itself with one threshold for all clients, so that the schedule lambda(t) by which
thresholds fall is part of what they are chosen for. Simulations that the store already has are taken from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment, check_seeds
from sordino.experiment.prepare import deal
from sordino.federation.rounds import RoundReport, RoundWatch, Watch
from sordino.parts.curves import Curve, check, drop_outliers, fit
from sordino.store.store import Store
from sordino.study.run_cells import run_or_reuse
from sordino.version import VERSION


def fit_curve(
    keys: Mapping[str, Any],
    epsilons: Sequence[float],
    clips: Sequence[float],
    seeds: int = 1,
    kind: str | None = None,
    monotone: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    watch: Watch | None = None,
) -> tuple[Curve, list[tuple[float, float]], list[dict[str, float]]]:
    """Fit a curve; returns it with the best threshold at each budget and the accuracy at every point of the grid.

    `keys` describe the simulated experiment on the proxy data; clients have equal budgets there. The curve remembers
    which data these were, because it must not be used to protect them, and what was simulated. `watch` gets the rounds
    of all simulations as if they were one run.
    """
    if len(epsilons) < 3:
        raise UserError("A curve needs at least three budgets to be fitted.")
    check_seeds(seeds)
    check([(epsilon, clip) for epsilon in epsilons for clip in clips], kind)
    for epsilon, clip in product(epsilons, clips):  # a mistake is told before hours of simulations
        _experiment(keys, epsilon, clip, 0)
    grid: list[dict[str, float]] = []
    best: list[tuple[float, float]] = []
    watches = _as_one_run(watch, int(keys["rounds"]), len(epsilons) * len(clips) * seeds)
    ends = {min(clips): "smallest", max(clips): "largest"}
    first = _experiment(keys, min(epsilons), min(clips), 0)
    with contextlib.closing(Store(first.store)) as store:
        for epsilon in sorted(epsilons):
            accuracies = {clip: _accuracy(keys, epsilon, clip, seeds, store, watches) for clip in sorted(clips)}
            grid += [{"epsilon": epsilon, "clip": clip, "accuracy": value} for clip, value in accuracies.items()]
            chosen = max(accuracies, key=lambda clip: accuracies[clip])
            best.append((epsilon, chosen))
            edge = f", the {ends[chosen]} that was tried" if chosen in ends and len(clips) > 1 else ""
            tell(f"epsilon {epsilon:g}: best threshold {chosen:g}{edge}, accuracy {accuracies[chosen]:.1%}")
    curve = fit(drop_outliers(best), kind, monotone)
    account = {
        "people": deal(first).people,
        "version": VERSION,
        "simulated": _described(first, keys) | {"seeds": seeds},
        "accuracies": [[one["epsilon"], one["clip"], round(one["accuracy"], 4)] for one in grid],
    }
    return replace(curve, provenance=curve.provenance | account), best, grid


def _described(experiment: Experiment, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the simulated experiment that were given, and that decide its results."""
    decided = experiment.decisive()
    given = {key: decided[key] for key in decided if key in keys and keys[key] is not None and key != "set"}
    settings = {key: value for key, value in keys.get("set", {}).items() if key != "clip"}
    return {"data": experiment.data, **given, **settings}


def _as_one_run(watch: Watch | None, rounds: int, simulations: int) -> Iterator[Watch | None]:
    """Watches of the simulations, which report their rounds to `watch` as those of one long run."""
    for number in range(simulations):
        if watch is None:
            yield None
        else:
            yield RoundWatch(partial(_shift, watch, number * rounds, simulations * rounds))


def _shift(watch: Watch, before: int, whole: int, report: RoundReport) -> None:
    watch(replace(report, round=before + report.round, rounds=whole))


def _accuracy(
    keys: Mapping[str, Any], epsilon: float, clip: float, seeds: int, store: Store, watches: Iterator[Watch | None]
) -> float:
    """Mean accuracy of the global model over seeds."""
    found = []
    for seed in range(seeds):
        made = run_or_reuse(_experiment(keys, epsilon, clip, seed), store, next(watches))
        found.append(made.accuracy["global"])
    known = [accuracy for accuracy in found if accuracy is not None]
    if not known:
        raise UserError("No client has records to test models on, so no curve can be fitted: give clients more.")
    return float(np.mean(known))


def _experiment(keys: Mapping[str, Any], epsilon: float, clip: float, seed: int) -> Experiment:
    """One simulation of the grid: every client clips at `clip` times the schedule."""
    settings = {**keys.get("set", {}), "clip": clip}
    chosen = {**keys, "method": "pac-dp", "epsilon": epsilon, "seed": seed, "set": settings}
    return Experiment.make({"evaluate_every": keys["rounds"]}, chosen)
