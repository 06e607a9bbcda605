"""Adaptive quantile clipping: the rule's numbers, and that it finds the quantile and stays there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordino.federation.replies import Answers
from sordino.federation.transport import Answer
from sordino.parts.thresholds import Fixed, Quantile
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.gate import Gate
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Public

RULE = Quantile(quantile=0.5, rate=0.2, share=0.05)
GATE = Gate(Allowance(Noise(1.0, "outsider", 200)), Seeded(1, "identity"))


def replies(below: list[float]) -> Answers:
    centred = torch.tensor(below).reshape(-1, 1) - 0.5  # as they come out of the gate
    return answered({"below": centred})


def answered(values: dict[str, torch.Tensor], rule: Quantile = RULE) -> Answers:
    """Values that are read in sums only, which costs nothing more: no books are needed."""
    return Answers(rule.releases(), {}, Answer(values, np.empty(0), 0, 0), GATE, Public({}), None)


def moved(clip: float, got: Answers) -> float:
    return RULE.following({"clip": clip}, got, None, None)["clip"]


def test_the_rule_by_hand() -> None:
    assert moved(1.0, replies([1.0, 0.0])) == pytest.approx(1.0)
    assert moved(1.0, replies([1.0, 1.0])) == pytest.approx(math.exp(-0.1))
    assert moved(1.0, replies([0.0, 0.0])) == pytest.approx(math.exp(0.1))


def test_the_noisy_share_is_held_to_the_possible() -> None:
    assert moved(1.0, replies([40.0])) == pytest.approx(math.exp(-0.1))
    assert moved(1.0, replies([-40.0])) == pytest.approx(math.exp(0.1))


def test_the_bit_says_whether_the_update_is_within() -> None:
    assert RULE.tell(torch.tensor([0.6, 0.8]), None, {"clip": 1.0}, None)["below"] == 1.0
    assert RULE.tell(torch.tensor([0.6, 0.9]), None, {"clip": 1.0}, None)["below"] == 0.0


def test_shares_add_up() -> None:
    assert sum(release.share for release in RULE.releases().values()) == pytest.approx(1.0)
    assert sum(release.share for release in Fixed().releases().values()) == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_it_finds_the_quantile_of_the_norms_and_stays(factor: float, quantile: float) -> None:
    """200 clients whose norms lie between 1 and 3; noise as in a run at multiplier 1."""
    norms = torch.linspace(1, 3, 200)
    wanted = float(torch.quantile(norms, quantile))
    rule = Quantile(quantile=quantile, rate=0.2, share=0.05)
    only = {"below": rule.releases()["below"]}
    clip, path = wanted * factor, []
    for number in range(100):
        bits = {"below": (norms <= clip).float().reshape(-1, 1)}
        out = GATE.passes(only, bits, number, Public({"clip": clip}, range(200)))
        clip = rule.following({"clip": clip}, answered(out.values, rule), None, None)["clip"]
        path.append(clip)
    assert all(0.85 * wanted < later < 1.15 * wanted for later in path[60:])
