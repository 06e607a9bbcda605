"""PAC-DP's curve from a privacy budget to a clipping threshold, and the decay of the threshold over the rounds.

The points (epsilon, best C) come from simulations on public data. Unlike the paper's, a curve is not extrapolated:
the published quadratic for MNIST is negative from epsilon 2.30.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear

from sordino.errors import UserError, unknown, writing
from sordino.util.files import read_file, write_whole
from sordino.util.plotting import pyplot

Point = tuple[float, float]
"""A budget epsilon and the threshold that was best with it."""
KINDS = {"quadratic": 3, "power": 2, "piecewise": 2}
"""Kinds of curve, and the number of different epsilons that each needs."""
DETERMINATION = "R^2"
"""Key of a curve's provenance for its coefficient of determination."""


@dataclass(frozen=True)
class Curve:
    """The clipping threshold C as a function of epsilon; calling it evaluates it."""

    kind: str
    """`quadratic`, `power` or `piecewise` (linear between knots)."""
    coefficients: tuple[float, ...]
    """Quadratic a e^2 + b e + c: a, b, c. Power law a e^b: a, b. Piecewise curve: the epsilons of all knots, then their
    C."""
    low: float
    """The smallest epsilon it was fitted to."""
    high: float
    """The largest."""
    clip_low: float
    """No C is below this."""
    clip_high: float
    """No C is above this."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where it comes from."""

    @property
    def people(self) -> str | None:
        """The digest of all records of the data that it was fitted on; None where that is not known."""
        return self.provenance.get("people")

    @property
    def determination(self) -> float | None:
        """R^2 on the points that it was fitted to; None where that is not known."""
        found = self.provenance.get(DETERMINATION)
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None

    def __call__(self, epsilon: float) -> float:
        """C, held to [clip_low, clip_high]; refused outside of [low, high], and where the curve is not positive."""
        if not self.low <= epsilon <= self.high:
            raise UserError(
                f"The clipping curve is known for epsilon from {self.low:g} to {self.high:g}, not for {epsilon:g}: "
                "choose a budget within, or fit a curve that reaches it (`sordino curve fit`)."
            )
        value = float(evaluate(self.kind, self.coefficients, np.array(epsilon)))
        if not value > 0:
            raise UserError(
                f"The clipping curve gives C = {value:.3g} at epsilon {epsilon:g}, and a threshold must be above 0: "
                "choose another budget or another curve."
            )
        return min(self.clip_high, max(self.clip_low, value))


PUBLISHED = {
    "mnist": Curve(
        "quadratic", (-5.5235, 12.0719, 1.4004), 0.01, 2.29, 0.01, 10.0, {"source": "PAC-DP, MNIST", "R^2": 0.9806}
    ),
    "cifar10": Curve(
        "quadratic", (0.0426, 1.29, 1.106), 0.1, 10.0, 0.01, 20.0, {"source": "PAC-DP, CIFAR-10", "R^2": 0.949}
    ),
}
"""The curves that the paper prints. It does not print the budgets they were fitted to: these ranges hold those it
uses, and MNIST's ends before the curve is negative."""


def evaluate(kind: str, coefficients: Sequence[float], epsilons: np.ndarray) -> np.ndarray:
    """Return the values of a curve without its limits; a piecewise curve is constant beyond its knots."""
    if kind == "quadratic":
        return np.polyval(coefficients, epsilons)
    if kind == "power":
        with np.errstate(over="ignore"):  # infinity is held to clip_high like any other value
            return coefficients[0] * epsilons ** coefficients[1]
    half = len(coefficients) // 2
    return np.interp(epsilons, coefficients[:half], coefficients[half:])


def drop_outliers(points: Sequence[Point], neighbours: int = 5) -> list[Point]:
    """Return the points, in the order of epsilon, without outliers.

    A point is compared with the `neighbours` points nearest to it in the order of epsilon, itself included, by the
    distance of log C from the trend (the Theil-Sen line in log epsilon). It is an outlier if it lies more than 1.5
    interquartile ranges below their first or above their third quartile. The range counts as at least the smallest
    step between different log C: one step of the grid of thresholds is no outlier. With fewer points none is dropped.
    """
    from scipy.stats import theilslopes  # takes longer to load than most commands take; few ever fit a curve

    ordered = sorted(points)
    if len(ordered) < neighbours or count_epsilons(points) == 1:
        return ordered
    epsilons, clips = np.log(ordered).T
    step = np.diff(np.unique(clips)).min(initial=np.inf)
    beside = clips - theilslopes(clips, epsilons).slope * epsilons
    kept = []
    for place, point in enumerate(ordered):
        begin = min(max(0, place - neighbours // 2), len(ordered) - neighbours)
        first, third = np.percentile(beside[begin : begin + neighbours], [25, 75])
        reach = 1.5 * max(third - first, step)
        if first - reach <= beside[place] <= third + reach:
            kept.append(point)
    return kept


def fit(points: Sequence[Point], kind: str | None = None, monotone: bool = False) -> Curve:
    """Fit a curve to points, limited to their range of epsilon and of C.

    Without a kind, the one with the smallest leave-one-out error is taken. If `monotone`, C never
    falls as epsilon grows: the points are first made so by isotonic regression, and of the quadratics that do not
    fall between the first and the last epsilon the nearest is taken.
    """
    check(points, kind)
    tried = (
        [kind] if kind else [name for name, least in KINDS.items() if count_epsilons(points) > least] or ["piecewise"]
    )
    errors = {name: left_out_error(points, name, monotone) for name in tried}
    best = min(errors, key=lambda name: errors[name])
    epsilons, clips = (np.array(column) for column in zip(*sorted(points), strict=True))
    coefficients = coefficients_of(points, best, monotone)
    return Curve(
        best,
        coefficients,
        float(epsilons.min()),
        float(epsilons.max()),
        float(clips.min()),
        float(clips.max()),
        {
            "points": [[float(epsilon), float(clip)] for epsilon, clip in sorted(points)],
            "left-out errors": {name: error for name, error in errors.items() if math.isfinite(error)},
            "monotone": monotone,
            DETERMINATION: determination(best, coefficients, points),
        },
    )


def determination(kind: str, coefficients: Sequence[float], points: Sequence[Point]) -> float | None:
    """Return R^2, the share of the variance of C over the points that a curve explains; None where they are level."""
    epsilons, clips = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    whole = float(((clips - clips.mean()) ** 2).sum())
    left = float(((clips - evaluate(kind, coefficients, epsilons)) ** 2).sum())
    return 1 - left / whole if whole > 0 else None


def check(points: Sequence[Point], kind: str | None) -> None:
    """Refuse points that no curve, or no curve of that kind, can be fitted to."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind of curve", kind, KINDS)
    if any(not (0 < number < math.inf) for point in points for number in point):
        raise UserError("A curve is fitted to budgets and thresholds that are above 0 and finite.")
    least = KINDS[kind] if kind else min(KINDS.values())
    if count_epsilons(points) < least:
        raise UserError(
            f"A {kind or 'curve'} needs points at {least} or more different epsilons, but there are "
            f"{count_epsilons(points)}: try more budgets."
        )


def count_epsilons(points: Sequence[Point]) -> int:
    """Count the different epsilons."""
    return len({epsilon for epsilon, _ in points})


def left_out_error(points: Sequence[Point], kind: str, monotone: bool) -> float:
    """Return the mean squared leave-one-out error in log C, one epsilon at a time; infinite if too few remain.

    In logarithms, because thresholds are chosen on a scale of factors. The first and the last epsilon are never left
    out: a curve is not used beyond its points.
    """
    ordered = sorted({epsilon for epsilon, _ in points})
    errors = []
    for left_out in ordered[1:-1]:
        others = [point for point in points if point[0] != left_out]
        if count_epsilons(others) < KINDS[kind]:
            return math.inf
        said = float(evaluate(kind, coefficients_of(others, kind, monotone), np.array(left_out)))
        said = max(said, 1e-3 * min(clip for _, clip in others))  # a negative C has no logarithm and counts as tiny
        errors += [math.log(said / clip) ** 2 for epsilon, clip in points if epsilon == left_out]
    return sum(errors) / len(errors) if errors else math.inf


def coefficients_of(points: Sequence[Point], kind: str, monotone: bool) -> tuple[float, ...]:
    """Fit the coefficients of a curve of one kind by least squares."""
    from sklearn.isotonic import IsotonicRegression

    epsilons, clips = (np.array(column, dtype=float) for column in zip(*sorted(points), strict=True))
    if monotone:
        clips = IsotonicRegression().fit_transform(epsilons, clips)
    if kind == "quadratic":
        found = fit_rising_quadratic(epsilons, clips) if monotone else np.polyfit(epsilons, clips, 2)
    elif kind == "power":
        slope, start = np.polyfit(np.log(epsilons), np.log(clips), 1)
        found = np.array([np.exp(start), slope])
    else:
        knots = np.unique(epsilons)
        found = np.concatenate([knots, [clips[epsilons == knot].mean() for knot in knots]])
    return tuple(float(number) for number in found)


def fit_rising_quadratic(epsilons: np.ndarray, clips: np.ndarray) -> np.ndarray:
    """Fit the least-squares quadratic that does not fall between the first and the last epsilon.

    A quadratic is, up to a constant, a combination of one that is level at the first epsilon and one that is level
    at the last; it does not fall between them exactly if both coefficients are at least 0.
    """
    low, high = epsilons.min(), epsilons.max()
    columns = np.stack([(epsilons - low) ** 2, -((high - epsilons) ** 2), np.ones_like(epsilons)], axis=1)
    up, down, level = lsq_linear(columns, clips, bounds=([0, 0, -np.inf], np.inf)).x
    return np.array([up - down, 2 * (down * high - up * low), up * low**2 - down * high**2 + level])


def plateau_then_cosine(t: int, rounds: int, plateau: float = 0.6, floor: float = 0.1) -> float:
    """Return the factor lambda(t) of the threshold in round t = 0, 1, ....

    It is 1 before round T_s = floor(plateau rounds), then half a cosine that would reach `floor` in round `rounds`.
    """
    start = math.floor(plateau * rounds)
    if t < start:
        return 1.0
    return floor + (1 - floor) * (1 + math.cos(math.pi * (t - start) / (rounds - start))) / 2


def save(curve: Curve, path: Path) -> None:
    """Write a curve as a small JSON file, with a line for each list of numbers."""
    written = re.sub(r"\[\s+([^][{}]*?)\s+\]", _in_one_line, json.dumps(asdict(curve), indent=2))
    with writing(path):
        write_whole(path, written + "\n")


def _in_one_line(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers[1].split())}]".replace(",,", ",")


def curve_called(name: str) -> Curve:
    """Return the curve that `name` stands for: a published one, one written out as JSON, or else that of a file."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    return load_curve(Path(name)) if is_file(name) else _parse(name, "The given curve")


def is_file(name: str) -> bool:
    """Whether `name` stands for a file."""
    return name not in PUBLISHED and not name.startswith("{")


def load_curve(path: Path) -> Curve:
    """Read a curve that `save` wrote."""
    try:
        content = read_file(path)
    except OSError as error:
        raise UserError(f"The curve {path} cannot be read ({error.strerror}); fit one: `sordino curve fit`.") from error
    return _parse(content, str(path))


def _parse(content: str | bytes, whose: str) -> Curve:
    try:
        return curve_from_json(json.loads(content))
    except RecursionError as error:
        raise UserError(f"{whose} is not a curve of `sordino curve fit`: it is nested too deeply.") from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{whose} is not a curve of `sordino curve fit`: {error}.") from error


def curve_from_json(stored: Mapping[str, Any]) -> Curve:
    """Return a curve from its JSON; raise a ValueError, TypeError or KeyError if it is none."""
    kind, coefficients = stored["kind"], tuple(float(number) for number in stored["coefficients"])
    if kind not in KINDS:
        raise ValueError(f"the kind {kind!r} is unknown")
    count = len(coefficients)
    if not (count >= 4 and count % 2 == 0 if kind == "piecewise" else count == KINDS[kind]):
        raise ValueError(f"{count} coefficients are not those of a {kind} curve")
    low, high, clip_low, clip_high = (float(stored[name]) for name in ("low", "high", "clip_low", "clip_high"))
    if not all(math.isfinite(number) for number in (*coefficients, high, clip_high)):
        raise ValueError("its numbers are not finite")
    if not (0 < low <= high and 0 < clip_low <= clip_high):
        raise ValueError("its ranges must be above 0, the lower end first")
    return Curve(kind, coefficients, low, high, clip_low, clip_high, dict(stored.get("provenance", {})))


def draw(curve: Curve, points: Sequence[Point], path: Path) -> None:
    """Draw a curve over its range, and points; those that it was fitted to are filled."""
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(7, 4.5), layout="constrained")
    epsilons = np.geomspace(curve.low, curve.high, 300)
    values = evaluate(curve.kind, curve.coefficients, epsilons)
    held = np.where(values > 0, values.clip(curve.clip_low, curve.clip_high), np.nan)
    axis.plot(epsilons, held, label=f"{curve.kind} curve")
    used = {tuple(point) for point in curve.provenance.get("points", [])}
    for inside, face, name in ((True, "C1", "fitted"), (False, "none", "left out")):
        shown = [point for point in points if (tuple(point) in used) == inside]
        if shown:
            axis.scatter(*zip(*shown, strict=True), facecolors=face, edgecolors="C1", zorder=3, label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("epsilon")
    axis.set_ylabel("clipping threshold C")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    with writing(path):
        figure.savefig(path, dpi=120)
    drawing.close(figure)
