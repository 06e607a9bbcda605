"""Thresholds of client-level methods: the schedule of normalised updates."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sordino.parts.thresholds import Normalised


@pytest.mark.parametrize(("decay", "clips"), [("linear", [8.0, 6.0, 4.0, 2.0, 2.0]), ("none", [8.0] * 5)])
def test_the_length_of_normalised_updates_shrinks_by_a_public_schedule(decay: Any, clips: list[float]) -> None:
    fed: Any = SimpleNamespace(schedule=SimpleNamespace(rounds=4))
    rule, got = Normalised(decay), SimpleNamespace()
    state = rule.begin(fed, 8.0)
    found = [state["clip"]]
    for _ in range(4):
        state = rule.following(state, got, fed, torch.zeros(1))  # type: ignore[arg-type]
        found.append(state["clip"])
    assert found == clips


def test_what_normalised_updates_send_is_scaled_to_the_threshold() -> None:
    (name, release), *others = Normalised().releases(at="mask").items()
    assert (name, release.normalised, release.clip, release.at, others) == ("update", True, "clip", "mask", [])  # type: ignore[attr-defined]
