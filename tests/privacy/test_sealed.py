"""Values of raw records can be handed to the gate, and nothing else can be done with them."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sordino.privacy.release import Average, Gradients, Matrix, Number, Public, ReleaseError, Update
from sordino.privacy.sealed import Sealed, SealedError, open_sealed

LOSSES = Sealed(torch.tensor([1.0, 2.0, 9.0]), "validation", "losses")
PUBLIC = Public({}, [0], layers=[3])


@pytest.mark.parametrize(
    "use",
    [
        lambda value: value + 1,
        lambda value: 2 * value,
        lambda value: value @ torch.ones(3),
        lambda value: torch.ones(3) * value,
        lambda value: value.mean(),
        lambda value: value.tolist(),
        lambda value: value[0],
        list,
        float,
        bool,
        lambda value: value > 0,
        len,
        torch.sum,
        lambda value: torch.stack([value]),
        torch.as_tensor,
        operator.neg,
        pickle.dumps,
        copy.deepcopy,
    ],
)
def test_nothing_can_be_computed_with_it(use: Callable[[Any], Any]) -> None:
    with pytest.raises((SealedError, TypeError)):
        use(LOSSES)


@pytest.mark.parametrize("use", [lambda value: value + 1, lambda value: 2 * value, lambda value: value * 2])
def test_whoever_computes_with_it_is_told_what_to_do(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SealedError, match="are raw data: send them as they are under a release"):
        use(LOSSES)


def test_it_shows_nothing() -> None:
    assert repr(LOSSES) == "<sealed losses of validation records>"
    assert "9" not in f"{LOSSES} {LOSSES!r}"


@pytest.mark.parametrize("release", [Update(1.0), Number(0.0, 1.0, 1.0), Gradients(1.0)])
def test_it_leaves_under_no_other_release(release: Any) -> None:
    with pytest.raises(ReleaseError, match="raw records"):
        release.opened(LOSSES, PUBLIC)


def test_means_and_matrices_take_only_what_is_sealed() -> None:
    """A row of its own, stretched to make the mean's noise smaller, is refused."""
    for release in (Average(0.0, 4.0), Matrix(0.1)):
        with pytest.raises(ReleaseError, match="sealed values"):
            release.opened(torch.ones(10_000), PUBLIC)
    with pytest.raises(ReleaseError, match="of training records"):
        Matrix(0.1).opened(LOSSES, PUBLIC)
    assert torch.equal(Average(0.0, 4.0).opened(LOSSES, PUBLIC), open_sealed(LOSSES).reshape(1, -1))
