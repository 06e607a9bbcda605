"""PAC-DP's offline phase: simulate on public data, and fit the curve from budgets to clipping thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment, check_seeds
from sordino.experiment.prepare import deal, prepare
from sordino.experiment.run import start
from sordino.parts.curves import Curve, check, filtered, fit


def fit_curve(
    keys: Mapping[str, Any],
    epsilons: Sequence[float],
    clips: Sequence[float],
    seeds: int = 1,
    kind: str | None = None,
    monotone: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Curve, list[tuple[float, float]], list[dict[str, float]]]:
    """The curve, the best threshold at each budget, and the accuracy at every point of the grid.

    `keys` describe the simulated experiment on the proxy data; clients have equal budgets there. The curve remembers
    which data these were: it must not be used to protect them.
    """
    if len(epsilons) < 3:
        raise UserError("A curve needs at least three budgets to be fitted.")
    check_seeds(seeds)
    check([(epsilon, clip) for epsilon in epsilons for clip in clips], kind)
    for epsilon, clip in product(epsilons, clips):  # a mistake is told before hours of simulations
        _experiment(keys, epsilon, clip, 0)
    grid: list[dict[str, float]] = []
    best: list[tuple[float, float]] = []
    for epsilon in sorted(epsilons):
        accuracies = {clip: _accuracy(keys, epsilon, clip, seeds) for clip in sorted(clips)}
        grid += [{"epsilon": epsilon, "clip": clip, "accuracy": value} for clip, value in accuracies.items()]
        chosen = max(accuracies, key=lambda clip: accuracies[clip])
        best.append((epsilon, chosen))
        tell(f"epsilon {epsilon:g}: best threshold {chosen:g}, accuracy {accuracies[chosen]:.1%}")
    curve = fit(filtered(best), kind, monotone)
    people = deal(_experiment(keys, best[0][0], best[0][1], 0)).people
    return replace(curve, provenance=curve.provenance | {"people": people}), best, grid


def _accuracy(keys: Mapping[str, Any], epsilon: float, clip: float, seeds: int) -> float:
    """The global model's mean accuracy over seeds."""
    found = []
    for seed in range(seeds):
        found.append(start(prepare(_experiment(keys, epsilon, clip, seed)))["accuracy"]["global"])
    return float(np.mean([accuracy for accuracy in found if accuracy is not None]))


def _experiment(keys: Mapping[str, Any], epsilon: float, clip: float, seed: int) -> Experiment:
    """One simulation of the grid."""
    settings = {**keys.get("set", {}), "clip": clip}
    chosen = {**keys, "method": "dp-fedavg-record", "epsilon": epsilon, "seed": seed, "set": settings}
    return Experiment.make({"evaluate_every": keys["rounds"]}, chosen)
