"""A hostile server and hostile sites: whatever they send, no rule is broken and nothing but a sentence comes back."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, Recorder, federation, kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import SENTENCES
from sordino.deploy.site.status import status
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.version import VERSION

MANY = int(os.environ.get("SORDINO_FUZZ", "0"))
"""How many examples instead of the usual number: 10000 takes minutes."""
NUMBERS = st.one_of(
    st.integers(-(2**60), 2**60),
    st.floats(),
    st.sampled_from([0, 1, -1, 2**31, 0.0, 1e-300, 1e300, math.nan, math.inf]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20), st.binary(max_size=40))
TENSORS = st.builds(
    lambda size, value: torch.full((size,), value),
    st.sampled_from([0, 1, 2, 649, 650, 651]),
    st.sampled_from([0.0, 1.0, -1e30, 1e30, math.nan, math.inf]),
)
VALUES = st.one_of(
    LEAVES, TENSORS, st.lists(LEAVES, max_size=3), st.dictionaries(st.text(max_size=5), LEAVES, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a message at which something stands."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, one in value.items():
            found += places(one, (*path, key))
    elif isinstance(value, list):
        for key, one in enumerate(value):
            found += places(one, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A message with something else at a place."""
    if not path:
        return new
    if isinstance(value, dict):
        return {key: replaced(one, path[1:], new) if key == path[0] else one for key, one in value.items()}
    return [replaced(one, path[1:], new) if key == path[0] else one for key, one in enumerate(value)]


def opened(request: bytes) -> dict[str, Any]:
    """A request with the question inside it spread out."""
    message = wire.unpack(request)
    if "ask" in message:
        message["ask"] = wire.unpack(message["ask"].tobytes())
    return message


def closed(message: dict[str, Any]) -> bytes:
    """The inverse of `opened`."""
    if isinstance(message.get("ask"), dict):
        message = {**message, "ask": np.frombuffer(wire.pack(message["ask"]), dtype=np.uint8)}
    return wire.pack(message)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A federation in its second round, and the requests that its site 0 has had, one of each kind."""
    with federation(tmp_path_factory.mktemp("attacked"), 3, rounds=3) as made:
        for site in made.sites:
            patient = site.context.policy.rules.model_copy(update={"max_misfits": 10**9})
            site.context.policy = dataclasses.replace(site.context.policy, rules=patient)
        seen = Recorder()

        def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if kind(request) == "open" and wire.unpack(request)["round"] == 1:
                seen.seen.append((node, "open", request, b""))
                raise KeyError("the server is gone")
            return seen(node, request, answer)

        with pytest.raises(KeyError):
            made.run(stop)
        requests = {
            what: [one for node, one, _ in seen.of(what) if node == 0][-1]
            for what in ("hello", "enrol", "work", "note", "open")
        }
        yield made, requests


@settings(max_examples=MANY or 250, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_hostile_server_buys_nothing(attacked: tuple[Federation, dict[str, bytes]], data: st.DataObject) -> None:
    made, requests = attacked
    site, before = made.sites[0], paid(made)
    what = data.draw(st.sampled_from(["hello", "enrol", "work", "work", "work", "note", "open", "open", "bytes"]))
    if what == "bytes":
        content = bytearray(requests[data.draw(st.sampled_from(sorted(requests)))])
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        request = bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    else:
        message = opened(requests[what])
        for _ in range(data.draw(st.integers(1, 3))):
            message = replaced(message, data.draw(st.sampled_from(places(message))), data.draw(VALUES))
            if not isinstance(message, dict):
                break
        try:
            request = closed(message)
        except wire.WireError:
            return
    reply = wire.unpack(site.answer(request))
    if reply["ok"] is not True:
        reply.pop("statement", None)  # of a site that waits until others confirm its ledger
        assert reply.pop("version", VERSION) == VERSION  # where protocols differ, so that somebody can upgrade
        assert reply == {"ok": False, "code": reply["code"], "sentence": SENTENCES[reply["code"]]}
        assert paid(made) == before
        return
    after = paid(made)
    assert after[0] <= before[0] + ("vector" in reply)
    assert after[1] <= 20 * (1 + 1e-9)


def paid(made: Federation) -> tuple[int, float]:
    """How many releases site 0 has paid for, and what its owner is told of it."""
    with SiteLedger(made.folders[0]) as ledger:
        many = sum(entry.kind == "release" for entry in ledger.entries())
    return many, status(made.folders[0])["spent"]["outsider"]


@settings(max_examples=(MANY // 100) or 6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_hostile_site_stops_a_run_or_is_left_out(
    attacked: tuple[Federation, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with federation(folder, 4, minimum_cohort=3, rounds=1) as made:

        def hostile(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            reply = answer()
            if node != 0 or not data.draw(st.booleans()):
                return reply
            if data.draw(st.booleans()):
                return data.draw(st.binary(max_size=200))
            message = wire.unpack(reply)
            changed = replaced(message, data.draw(st.sampled_from(places(message))), data.draw(VALUES))
            try:
                return wire.pack(changed)
            except wire.WireError:
                return reply

        try:
            summary = made.run(hostile)
        except UserError:
            return
        assert summary.rounds_done == 1
        model, terms = made.model(summary.run), terms_of(made.experiment)
        assert float((model - terms.initial).norm()) < 4 * 0.5 + longest(terms)


def longest(terms: DeployedTerms) -> float:
    """How long the noise of a mean is at the most, for all that can happen in a test."""
    deviation = terms.allowance.of_clients.of_message(1.0) * 0.5
    return float(deviation * (terms.learner.layout.size**0.5 + 12))
