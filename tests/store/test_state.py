"""The server's state comes back as it was, or is refused."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import UserError
from sordino.store.checkpoint import check_keepable, decode, encode


def back(state: dict[str, Any]) -> dict[str, Any]:
    return decode(*encode(state))


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return repr(one) == repr(other)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**62), 2**62).map(np.int64),
    st.lists(st.floats(width=32), max_size=4).map(lambda values: torch.tensor(values).nan_to_num()),
    st.lists(st.integers(-9, 9), max_size=4).map(np.array),
)
names = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(names, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), values, max_size=5))
def test_states_come_back(state: dict[str, Any]) -> None:
    assert same(back(state), state)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.int8]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_tensors_of_all_kinds(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    assert same(back({"value": value})["value"], value)


def test_where_a_tensor_lies_in_memory_is_kept_where_it_is_dense() -> None:
    """Sums over the same numbers in another order may differ in their last bits."""
    whole = torch.arange(24.0).reshape(2, 3, 4)
    for value in (whole.permute(2, 0, 1), whole[0].T, whole):
        assert back({"value": value})["value"].stride() == value.stride()
    for value in (whole[:, ::2], torch.ones(1).expand(5), whole[0, :, 1]):
        assert torch.equal(back({"value": value})["value"], value)
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert back({"value": fortran})["value"].flags.f_contiguous


def test_one_tensor_under_two_names_stays_one() -> None:
    tensor, array = torch.ones(2), np.ones(2)
    found = back({"a": tensor, "b": [tensor, array], "c": array, "d": torch.ones(2)})
    assert found["a"] is found["b"][0]
    assert found["c"] is found["b"][1]
    assert found["a"] is not found["d"]


def test_what_comes_back_can_be_changed_in_place() -> None:
    leaf, parameter = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    found = back({"tensor": torch.ones(2), "array": np.ones(2), "leaf": leaf, "parameter": parameter})
    found["tensor"] += 1
    found["array"] += 1
    assert found["leaf"].requires_grad
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert found["parameter"].requires_grad


def test_a_networks_state_comes_back() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 1)).state_dict()
    found = back({"network": OrderedDict(state)})["network"]
    assert isinstance(found, OrderedDict)
    assert list(found) == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (len, "builtin_function_or_method"),
        ({1, 2}, "set"),
        (namedtuple("Pair", "a b")(1, 2), "Pair"),
        (torch.nn.UninitializedParameter(), r"UninitializedParameter \(torch.float32, torch.strided\)"),
        (torch.eye(2).to_sparse(), r"torch.Tensor \(torch.float32, torch.sparse_coo\)"),
        (np.array([None]), r"numpy.ndarray \(object\)"),
    ],
)
def test_what_cannot_be_kept_is_named(value: Any, kind: str) -> None:
    with pytest.raises(UserError, match=rf"\"a\[1\]\['b'\]\" has a value of type [\w.]*{kind}, which"):
        check_keepable({"a": [0, {"b": value}]})


def test_a_key_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(UserError, match=r"has as a key a value of type frozenset"):
        check_keepable({"a": {frozenset(): 1}})


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {"a": []}
    state["a"].append(state["a"])
    with pytest.raises(UserError, match="holds itself"):
        check_keepable(state)
