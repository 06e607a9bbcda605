"""Thresholds drawn at random: the control for rules that choose them."""

import math
from types import SimpleNamespace
from typing import Any

import torch

from sordino.parts.thresholds import Fixed, Random


def test_thresholds_fill_their_range_evenly_on_a_logarithmic_scale() -> None:
    numbers = torch.Generator().manual_seed(0)
    fed: Any = SimpleNamespace(random=lambda purpose: numbers)
    rule = Random(low=0.3, high=10.0)
    state, drawn = rule.begin(fed, 2.0), []
    for _ in range(2000):
        drawn.append(state["clip"])
        state = rule.following(state, SimpleNamespace(), fed, torch.zeros(1))  # type: ignore[arg-type]
    assert 2 * 0.3 <= min(drawn) < 2 * 0.33
    assert 2 * 9 < max(drawn) <= 2 * 10
    middle = 2 * math.sqrt(0.3 * 10)
    # Of 2,000 fair coins fewer than 880 or more than 1,120 heads come up once in ten million times.
    assert 880 < sum(one < middle for one in drawn) < 1120


def test_it_costs_what_a_fixed_threshold_costs() -> None:
    assert Random().releases() == Fixed().releases()
    assert Random().unprotected() == Fixed()
