"""Clients under `vmap`: what goes in and comes out, against torch's own; and the private names that it rests on."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from torch import Tensor
from torch.func import grad, vmap

from sordino.errors import UserError
from sordino.learning import vmapped
from sordino.learning.vmapped import FUNCTORCH, TESTED, as_one, over_clients, under_vmap

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


def test_tensors_that_all_clients_share_are_repeated() -> None:
    def whole(x: Tensor, shared: Tensor, none: Tensor | None) -> Tensor:
        assert shared.shape == (4, 3)
        assert none is None
        return x + shared

    found = over_clients(lambda x: under_vmap(whole, x, torch.ones(3), None), 4, X)
    assert torch.equal(found, X + 1)


def test_it_is_the_public_way() -> None:
    """Without private names, where another transformation is within: the same stacks are seen."""

    def whole(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale.unsqueeze(1)

    def one(x: Tensor, scale: Tensor) -> Tensor:
        return grad(lambda y: (y * under_vmap(whole, x, scale)).sum())(x)

    assert torch.equal(over_clients(one, 4, X, SCALE), X * SCALE.unsqueeze(1))
    assert torch.equal(vmap(lambda x, s: under_vmap(whole, x, s), in_dims=(1, 0))(X.T, SCALE), X * SCALE.unsqueeze(1))


def test_every_private_name_is_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    private, used = vmapped._functorch, set()

    class Noted:
        def __getattr__(self, name: str) -> Any:
            used.add(name)
            return getattr(private, name)

    monkeypatch.setattr(vmapped, "_functorch", Noted())
    test_it_is_vmap()
    test_rows_are_fetched_within()
    test_whole_stacks_are_seen_from_within()
    assert used == set(FUNCTORCH)
    assert used == set(
        re.findall(r"_functorch\.(\w+)\(?", Path(vmapped.__file__).read_text("utf-8").split("def ", 1)[1])
    )


@pytest.mark.parametrize("name", FUNCTORCH)
def test_a_torch_without_a_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._functorch, name)
    with pytest.raises(UserError, match=rf"needs torch 2.6 to 2.15; .* lacks something .*{name}"):
        runpy.run_path(vmapped.__file__)


def test_only_tested_versions_are_admitted() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (torch_range,) = (one.specifier for one in map(Requirement, project["dependencies"]) if one.name == "torch")
    first, last = TESTED
    after = f"2.{int(last.split('.')[1]) + 1}.0"
    assert [torch_range.contains(version) for version in ("2.5.1", f"{first}.0", f"{last}.9", after)] == [
        *(False, True, True, False)
    ]
