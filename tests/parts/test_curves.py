"""Curves from budgets to thresholds: published values, fits of known functions, refusals; and the schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import UserError
from sordino.parts.curves import (
    KINDS,
    PUBLISHED,
    Curve,
    determination,
    draw,
    drop_outliers,
    evaluate,
    fit,
    load_curve,
    plateau_then_cosine,
    save,
)

EPSILONS = [0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("name", "epsilon", "clip"),
    [
        *(("mnist", 0.05, 1.99), ("mnist", 0.1, 2.552), ("mnist", 1.0, 7.9488)),
        *(("cifar10", 0.5, 1.76), ("cifar10", 1.0, 2.4386), ("cifar10", 5.0, 8.621)),
    ],
)
def test_published_values(name: str, epsilon: float, clip: float) -> None:
    assert PUBLISHED[name](epsilon) == pytest.approx(clip, abs=2e-3)


def test_mnists_curve_is_refused_before_it_is_negative() -> None:
    """By its range, and, with a wider one, by its value: the root is at 2.2965."""
    assert PUBLISHED["mnist"](2.29) > 0
    with pytest.raises(UserError, match=r"from 0\.01 to 2\.29"):
        PUBLISHED["mnist"](2.3)
    wide = replace(PUBLISHED["mnist"], high=10.0)
    for epsilon in (2.3, 3.0, 10.0):
        with pytest.raises(UserError, match="above 0"):
            wide(epsilon)


def test_nothing_is_extrapolated_and_everything_is_held() -> None:
    curve = Curve("power", (2.0, 1.0), 0.5, 4.0, 1.5, 6.0)
    assert [curve(epsilon) for epsilon in (0.5, 1.0, 2.5, 4.0)] == [1.5, 2.0, 5.0, 6.0]
    for epsilon in (0.49, 4.01, math.nan):
        with pytest.raises(UserError, match=r"0\.5 to 4"):
            curve(epsilon)


def test_piecewise_by_hand() -> None:
    curve = fit([(1.0, 2.0), (3.0, 6.0), (2.0, 1.0), (2.0, 3.0)], "piecewise")
    assert curve.coefficients == (1.0, 2.0, 3.0, 2.0, 2.0, 6.0)
    assert [curve(epsilon) for epsilon in (1.0, 1.5, 2.5, 3.0)] == [2.0, 2.0, 4.0, 6.0]


def test_fits_find_what_made_the_points() -> None:
    """Each kind is chosen for points of that kind, with its coefficients; a piecewise one for a kink."""
    power = fit([(e, 1.7 * e**0.4) for e in EPSILONS])
    assert power.kind == "power"
    assert power.coefficients == pytest.approx((1.7, 0.4))
    quadratic = fit([(e, 0.3 * e * e - e + 2) for e in EPSILONS])
    assert quadratic.kind == "quadratic"
    assert quadratic.coefficients == pytest.approx((0.3, -1, 2))
    kinked = fit([(e, 1.0 if e <= 3 else 4 * e - 11) for e in np.linspace(0.5, 6, 12).tolist()])
    assert kinked.kind == "piecewise"
    assert (power.low, power.high) == (0.1, 8.0)
    assert (power.clip_low, power.clip_high) == pytest.approx((1.7 * 0.1**0.4, 1.7 * 8**0.4))


def test_the_published_quadratic_is_found_again() -> None:
    points = [(e, PUBLISHED["mnist"](e)) for e in (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5)]
    assert fit(points).coefficients == pytest.approx(PUBLISHED["mnist"].coefficients, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(clips=st.lists(st.floats(0.1, 10), min_size=4, max_size=7))
def test_monotone_curves_never_fall(kind: str, clips: list[float]) -> None:
    curve = fit(list(zip(EPSILONS, clips, strict=False)), kind, monotone=True)
    values = evaluate(kind, curve.coefficients, np.linspace(curve.low, curve.high, 200))
    assert np.diff(values).min() >= -1e-9 * np.abs(values).max()


def test_a_monotone_fit_of_rising_points_is_the_fit() -> None:
    points = [(e, 0.1 * e * e + e + 1) for e in EPSILONS]
    assert fit(points, "quadratic", monotone=True).coefficients == pytest.approx((0.1, 1, 1), rel=1e-4)
    falling = [(e, 5 - 0.5 * e) for e in EPSILONS]
    level = sum(clip for _, clip in falling) / 7
    assert fit(falling, "quadratic", monotone=True)(1.0) == pytest.approx(level)


def test_outliers_among_neighbours_go_and_ends_of_a_steep_curve_stay() -> None:
    steep = [(e, e**1.5) for e in EPSILONS]
    assert drop_outliers(steep) == steep
    wild = [*steep[:3], (1.0, 40.0), *steep[4:]]
    assert drop_outliers(wild) == steep[:3] + steep[4:]
    assert drop_outliers(list(reversed(wild))) == drop_outliers(wild)
    assert len(drop_outliers([(1.0, 1.0), (2.0, 99.0), (3.0, 1.0)])) == 3


def test_one_step_of_the_grid_is_no_outlier() -> None:
    """Answers that are equal but for the grid have little range or none, and yet all are kept."""
    points = list(zip(EPSILONS[:5], (0.3, 1.0, 1.0, 1.0, 3.0), strict=True))
    assert drop_outliers(points) == points
    last = list(zip(EPSILONS, (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0), strict=True))
    assert drop_outliers(last) == last
    assert drop_outliers([(e, 1.0) for e in EPSILONS]) == [(e, 1.0) for e in EPSILONS]
    assert (0.5, 30.0) not in drop_outliers([*points[:2], (0.5, 30.0), *points[3:]])


def test_how_much_of_the_points_a_curve_explains() -> None:
    """Of C = 1, 2, 6 about their mean of 3 the squares are 14; the line e - 0.0 of power 1 leaves 0 + 0 + 9 of it."""
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 6.0)]
    assert determination("power", (1.0, 1.0), points) == pytest.approx(1 - 9 / 14)
    assert determination("power", (1.0, 0.0), [(1.0, 2.0), (2.0, 2.0)]) is None
    assert fit([(e, 0.3 * e * e - e + 2) for e in EPSILONS]).determination == pytest.approx(1)
    assert PUBLISHED["mnist"].determination == 0.9806
    assert PUBLISHED["cifar10"].determination == 0.949
    assert Curve("power", (1.0, 1.0), 1.0, 2.0, 1.0, 2.0, {"R^2": "junk"}).determination is None


def test_bad_points_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'power'"):
        fit([(1.0, 1.0), (2.0, 2.0)], "powr")
    with pytest.raises(UserError, match="needs points at 2 or more"):
        fit([(1.0, 1.0), (1.0, 2.0)])
    with pytest.raises(UserError, match="quadratic needs points at 3"):
        fit([(1.0, 1.0), (2.0, 2.0)], "quadratic")
    with pytest.raises(UserError, match="above 0"):
        fit([(1.0, 1.0), (2.0, 0.0), (3.0, 1.0)])
    assert fit([(1.0, 1.0), (2.0, 2.0)]).kind == "piecewise"


def test_a_curve_survives_its_file(tmp_path: Path) -> None:
    curve = fit([(e, 1 + e**0.5) for e in EPSILONS])
    save(curve, tmp_path / "new" / "curve.json")
    assert load_curve(tmp_path / "new" / "curve.json") == curve
    assert '"coefficients": [' + f"{curve.coefficients[0]}, " in (tmp_path / "new" / "curve.json").read_text()
    assert (tmp_path / "new" / "curve.json").stat().st_size < 2000


@pytest.mark.parametrize(
    "text",
    [
        *("no json", "[1]", "{}"),
        '{"kind": "cubic", "coefficients": [1, 2, 3], "low": 1, "high": 2, "clip_low": 1, "clip_high": 2}',
        '{"kind": "power", "coefficients": [1, 2, 3], "low": 1, "high": 2, "clip_low": 1, "clip_high": 2}',
    ],
)
def test_a_file_that_is_no_curve_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_curve(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UserError, match="is not a curve"):
        load_curve(tmp_path / "bad.json")


def test_the_schedule_by_hand() -> None:
    assert [plateau_then_cosine(t, 25) for t in (0, 14, 15)] == [1.0, 1.0, 1.0]
    assert plateau_then_cosine(20, 25) == pytest.approx(0.55)
    assert plateau_then_cosine(24, 25) == pytest.approx(0.1 + 0.45 * (1 + math.cos(0.9 * math.pi)))
    assert plateau_then_cosine(24, 25) == pytest.approx(0.1220, abs=5e-5)
    assert plateau_then_cosine(0, 1) == 1.0
    assert [plateau_then_cosine(t, 5, plateau=1.0) for t in range(5)] == [1.0] * 5
    assert plateau_then_cosine(2, 4, plateau=0.0, floor=0.2) == pytest.approx(0.6)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    points = [(e, 1 + e**0.5) for e in EPSILONS]
    draw(fit(points), [*points, (1.5, 30.0)], tmp_path / "new" / "curve.png")
    assert (tmp_path / "new" / "curve.png").stat().st_size > 10_000
    draw(PUBLISHED["mnist"], [], tmp_path / "mnist.png")
