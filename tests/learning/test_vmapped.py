"""Clients under `vmap`: what goes in and comes out, against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from sordino.learning.vmapped import as_one, over_clients, under_vmap

X, SCALE = torch.arange(12.0).reshape(4, 3), torch.tensor([1.0, 2.0, 3.0, 4.0])


def step(x: Tensor, of: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    return {"product": x * of["scale"], "same": torch.ones(2)}, grad(lambda x: (x**2).sum())(x)


def test_it_is_vmap() -> None:
    found, wanted = over_clients(step, 4, X, {"scale": SCALE}), vmap(step)(X, {"scale": SCALE})
    assert torch.equal(found[1], wanted[1])
    for name in wanted[0]:
        assert torch.equal(found[0][name], wanted[0][name])


def test_what_is_absent_or_no_tensor_is_left_as_it_is() -> None:
    assert over_clients(lambda x, none: (none, "text"), 4, X, None) == (None, "text")


def test_rows_are_fetched_within() -> None:
    def one(x: Tensor) -> Tensor:
        fetch = as_one(lambda name: SCALE)
        return grad(lambda x: (x * fetch("scale")).sum())(x)  # also within another transformation

    assert over_clients(one, 4, X).tolist() == [[scale] * 3 for scale in SCALE.tolist()]


def test_a_failure_leaves_no_level_behind() -> None:
    def fails(x: Tensor) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        over_clients(fails, 4, X)
    assert torch._C._functorch.maybe_current_level() is None


def test_whole_stacks_are_seen_from_within() -> None:
    def whole(x: Tensor, scale: Tensor) -> Tensor:
        assert x.shape == (4, 3)
        return x * scale.unsqueeze(1)

    assert torch.equal(over_clients(lambda x, s: under_vmap(whole, x, s), 4, X, SCALE), X * SCALE.unsqueeze(1))
