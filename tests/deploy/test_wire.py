"""Bytes between a site and the server: lossless, bounded, and whatever comes in is a message or one sentence."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.wire import WireError, pack, unpack
from sordino.federation.message import Each, digest

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**1000), 2**1000),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs", "L"])),
    st.binary(max_size=40),
)
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    kind, shape = draw(st.sampled_from(list(wire.CARRIERS))), draw(SHAPES)
    raw = torch.randint(0, 2 if kind is torch.bool else 256, (*shape, kind.itemsize), dtype=torch.uint8)
    return raw.view(kind).reshape(shape)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    kind, shape = draw(st.sampled_from(sorted(wire.ARRAYS, key=str))), draw(SHAPES)
    count = math.prod(shape) * kind.itemsize
    return np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype=kind).reshape(shape)


VALUES = st.recursive(
    st.one_of(SCALARS, tensors(), arrays(), tensors().map(Each)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(), st.binary(max_size=4)), inner, max_size=4),
    ),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


def same(one: Any, other: Any) -> bool:  # noqa: PLR0911 (one for each type)
    """Whether two values are of one type and the same, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Each):
        return same(one.values, other.values)
    if isinstance(one, torch.Tensor):
        raw = [value.contiguous().view(wire.CARRIERS[value.dtype]).numpy().tobytes() for value in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and raw[0] == raw[1]
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@settings(max_examples=100, deadline=None)
@given(MESSAGES)
def test_what_is_packed_is_unpacked_as_it_was(message: dict[str, Any]) -> None:
    assert same(unpack(pack(message)), message)


def test_a_message_of_a_method_keeps_its_digest() -> None:
    message = {
        "global": torch.randn(7),
        "clip": 0.1,
        "masks": Each(torch.rand(4, 3) > 0.5),
        "layers": [1, 2, (3.0, -0.0)],
        "coarse": torch.randn(2, 2).bfloat16(),
        "threshold": {"clip": torch.tensor(0.5), "beta": None, "on": True, "name": "trend", 3: math.inf},
        "mine": torch.arange(6).reshape(2, 3).t(),
    }
    assert digest(unpack(pack(message))) == digest(message)


def test_what_is_unpacked_can_be_written_to_and_shares_nothing() -> None:
    content = pack({"x": torch.zeros(3), "y": np.zeros(3, dtype=np.uint32)})
    first, second = unpack(content), unpack(content)
    first["x"] += 1
    first["y"] += 1
    assert not second["x"].any()
    assert not second["y"].any()


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.float64(1.0), torch.zeros(2, dtype=torch.complex64), np.array(["a"]), 2**1025]
)
def test_what_cannot_be_sent_is_told(value: Any) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack({"value": value})


def test_a_message_must_not_be_too_deep_or_too_large() -> None:
    deep: Any = 1
    for _ in range(wire.MAX_DEPTH):
        deep = [deep]
    with pytest.raises(WireError, match="deep"):
        pack({"deep": deep})
    assert unpack(pack({"deep": deep[0]})) == {"deep": deep[0]}
    content = pack({"x": torch.zeros(1000)})
    with pytest.raises(WireError, match="at most 4,000 are accepted"):
        unpack(content, 4000)
    with pytest.raises(WireError, match=r"but at most .* can be sent"):
        pack({"text": "x" * wire.MAX_HEAD_BYTES})


# ---- whatever comes in


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_one_error(content: bytes) -> None:
    try_to_read(content)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.data())
def test_a_message_with_some_bytes_changed_is_a_message_or_one_error(
    message: dict[str, Any], data: st.DataObject
) -> None:
    content = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    try_to_read(bytes(content[:cut]))


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
        st.tuples(
            st.sampled_from(["table", "list", "tuple", "tensor", "each", "array", "bytes", "float"]),
            st.one_of(inner, st.lists(inner, max_size=2), st.tuples(st.integers(0, 2), st.sampled_from(["bool", "x"]))),
        ),
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(JSONS, st.lists(arrays(), max_size=2))
def test_any_head_with_any_body_is_a_message_or_one_error(head: Any, body: list[np.ndarray]) -> None:
    written = save({str(place): np.ascontiguousarray(one).reshape(one.shape) for place, one in enumerate(body)})
    try_to_read(framed(json.dumps(head).encode(), written))


def try_to_read(content: bytes) -> None:
    try:
        message = unpack(content)
    except WireError as error:
        sentence = str(error)
        message = {}
    else:
        sentence = "Read."
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert same(unpack(pack(message)), message)


def framed(head: bytes, body: bytes) -> bytes:
    return wire.MAGIC + len(head).to_bytes(8, "little") + head + body


@pytest.mark.parametrize(
    "head",
    [
        "[" * 100_000,
        '["table",[["a",1],["a",["array",0]]]]',
        '["table",[["a",NaN]]]',
        '["table",[["a",1e999]]]',
        '["table",["ab"]]',
        '["table",[["a",["tensor",[0,"bool"]]]]]',
        '["table",[["a",["tensor",["0","uint8"]]]]]',
        '["table",[["a",["array",7]]]]',
        '["table",[["a",["bytes","%"]]]]',
        '["table",[["a",["float","1"]]]]',
        '["table",[["a",' + "9" * 5000 + "]]]",
        '["table",[["a",' + "9" * 400 + "]]]",
        '["table",[]]',  # the body holds more than the head names
        '["list",[]]',
        "{}",
        "7",
    ],
)
def test_heads_that_are_refused(head: str) -> None:
    with pytest.raises(WireError):
        unpack(framed(head.encode(), save({"0": np.array([2], dtype=np.uint8)})))


def test_lengths_that_lie_are_refused() -> None:
    content = pack({"a": 1})
    for size in (2**63, len(content), wire.MAX_HEAD_BYTES + 1):
        with pytest.raises(WireError, match="no message of Sordino"):
            unpack(content[:8] + size.to_bytes(8, "little") + content[16:])
    with pytest.raises(WireError, match="no message of Sordino"):
        unpack(b"")


def test_nothing_in_it_is_a_pickle() -> None:
    import pickle

    with pytest.raises(WireError):
        unpack(pickle.dumps({"a": 1}))
