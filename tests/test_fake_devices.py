"""Every method's computations at clients under torch's own rules for devices: `FakeTensorMode`.

Questions of a run here are asked once more of clients elsewhere, with tensors that have shapes and a device and hold
nothing. Torch's rules then refuse what mixes devices, in whatever its layers, `vmap` and differentiation turn into; and
whoever reads a value is seen, because there is none. A device would be waited for there, so each such place is named in
`READ`, with its reason. The gate is left out: noise is drawn on the processor.

The device is a card where torch was built for cards, with or without one at hand. Other builds cannot differentiate
on it ("not linked with support for cuda devices"), and have `meta` instead. Values are compared in `test_devices.py`.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ALL, KINDS, UNSTACKED
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

import sordino
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.federation import client as clients_module
from sordino.federation import execution
from sordino.federation.client import Clients, Question, keeper_of
from sordino.federation.execution import EXECUTIONS
from sordino.learning import stacked
from sordino.learning.network import Learner
from sordino.methods import find
from sordino.privacy import gradients
from sordino.privacy.gate import everyone
from sordino.privacy.sealed import Sealed, open_sealed
from sordino.store.store import Store

CARD = torch.device("cuda:0" if torch.cuda._is_compiled() else "meta")
READ = {
    ("descent.py", "_epoch_alone"): "once in an epoch with a mask: only the entries that move are worked on",
    ("descent.py", "_others"): "once for each penalty: the entries that it leaves alone",
    ("ditto_record.py", "local"): "how often a client took part decides how many steps it takes",
    ("gradients.py", "_clipped_sum"): "a sum that is not finite is made once more, without the records that spoil it",
    ("gradients.py", "_sums"): "the same, for stacked clients",
    ("gradients.py", "_groups"): "a task groups targets on the processor",
    ("clustering.py", "orthonormal_basis"): "directions that are rounding errors alone are left out",
    ("clustering.py", "class_subspace"): "the published grouping takes the records of each class by themselves",
    ("stacked.py", "_growth"): "rounding of a kind of number on a device: looked up once",
    ("clipping.py", "check_weights"): "weights that a step gives are checked",
}
"""Places in which a value is read that lies elsewhere, and why."""
aten = torch.ops.aten
READS = (
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default),
    *(aten._unique2.default, aten.repeat_interleave.Tensor),
)
"""Operations that look at values: their results, or the shapes of these, are on the processor."""


@dataclass
class Asked:
    """A question of a run, and the clients that were asked."""

    clients: Clients
    question: Question
    me: dict[str, Tensor]


class Reading(TorchDispatchMode):
    """While it lasts, whoever reads a value of `CARD` is noted, and gets one that lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        first = arguments[0] if arguments else None
        if not isinstance(first, FakeTensor):
            return (outside(operation) if operation in READS else operation)(*arguments, **keywords)
        away = first.fake_device == CARD
        if operation in READS:  # nobody waits for the processor
            self.places |= {reader()} if away else set()
            if operation is aten.nonzero.default:
                return torch.arange(first.numel(), device=first.fake_device).unsqueeze(1).expand(-1, first.dim())
            if operation is aten._unique2.default:
                return first.flatten()[:2], torch.zeros_like(first), torch.zeros_like(first.flatten()[:2])
            return True if operation is aten.equal.default else one_of(first.dtype)
        if operation is aten.index.Tensor and any(x is not None and x.dtype == torch.bool for x in arguments[1]):
            # All are chosen.
            self.places |= {reader()} if away else set()
            return first.clone()
        target = keywords.get("device")
        if operation is aten._to_copy.default and away and target is not None and torch.device(target) != CARD:
            self.places.add(reader())
        return operation(*arguments, **keywords)


def real(value: Any) -> Any:
    return torch.ones(value.shape, dtype=value.dtype) if isinstance(value, FakeTensor) else value


def one_of(dtype: torch.dtype) -> float | int | bool:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def reader() -> tuple[str, str]:
    """File and function of Sordino from which a value is read."""
    frame = sys._getframe(2)
    root = str(Path(sordino.__file__).parent)
    while not frame.f_code.co_filename.startswith(root):
        assert frame.f_back is not None
        frame = frame.f_back
    function = frame.f_code.co_qualname.partition(".<locals>")[0].split(".")[-1]  # not a comprehension in it
    return Path(frame.f_code.co_filename).name, function


def questions(folder: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]) -> list[Asked]:
    """The last question of each step of a run of two rounds."""
    found: dict[str, Asked] = {}
    answer = Clients.answer

    def noting(self: Clients, question: Question, me: dict[str, Tensor]) -> Any:
        found[question.step] = Asked(self, copy.deepcopy(question), {name: rows.clone() for name, rows in me.items()})
        return answer(self, question, me)

    usual = {"clients": 4, "rounds": 2, "model": "mlp", "noise_multiplier": 20.0, "workers": 1, "store": folder}
    usual |= {"partition": "iid", "records": 120}
    settings = {"epochs": 1, "batch": 1000 if find(case["method"]).unit == "record" else 30}
    with monkeypatch.context() as patches, contextlib.closing(Store(folder)) as store:
        patches.setattr(Clients, "answer", noting)
        start(prepare(Experiment.make(usual, case, {"set": settings})), store)
    return list(found.values())


@dataclass
class Outside:
    """An object whose methods run without any mode: they work on the processor, with real values."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return outside(found) if callable(found) else found


def outside(function: Any) -> Any:
    """The function without any mode: on the processor, with ones in the place of tensors that hold nothing."""

    def called(*arguments: Any, **keywords: Any) -> Any:
        with _disable_current_modes():
            return function(*tree_map(real, arguments), **tree_map(real, keywords))

    return called


@dataclass
class NoNoise:
    """A mechanism that leaves sums as they are."""

    seen: list[torch.device] = field(default_factory=list)

    def noised_sum(self, total: Tensor, *_: Any) -> Tensor:
        self.seen.append(total.device)
        return total

    noised_sums = noised_sum


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """Torch's mode, with a note of all that is read."""
    monkeypatch.setattr(execution, "_seed_dropout", lambda seed, device: None)
    monkeypatch.setattr(gradients, "_random_state", lambda device: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # not for `meta`
    monkeypatch.setattr(clients_module, "validation_records", outside(clients_module.validation_records))
    remembering = (stacked._growth, everyone)
    for function in remembering:
        function.cache_clear()
    yield Reading()
    for function in remembering:  # what they remember now holds nothing
        function.cache_clear()


def elsewhere(asked: Asked, mode: FakeTensorMode) -> Clients:
    """The clients that were asked, on `CARD`."""
    there = copy.copy(asked.clients)
    module = copy.deepcopy(there.learner.written)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(mode.from_tensor(parameter.detach()).to(CARD))
    there.learner, there.device = Learner(module, there.learner.task), CARD
    there._records, there._reach, there._compiled = {}, {}, None
    mechanism = NoNoise()
    there.gate = Outside(copy.copy(there.gate))  # type: ignore[assignment]
    object.__setattr__(there.gate.inner, "mechanism", mechanism)  # type: ignore[attr-defined]
    if there.protects_records:
        there._keeper = keeper_of(there.learner, there.data.train)
    return there


CASES = [
    {"method": name, "variant": variant, "engine": engine}
    for name, variant in ALL
    for engine in EXECUTIONS
    if engine == "one-by-one" or (name, variant) not in UNSTACKED
]
OFTEN = [case for case in CASES if case["method"] in KINDS and case["variant"] == "sound"] + [
    {"method": "dp-fedavg", "model": "device_networks:Residual", "engine": "stacked"},
    {"method": "dp-fedavg-record", "model": "device_networks:Convolutions", "engine": "one-by-one"},
]
LONG = [case for case in CASES if case not in OFTEN]


@pytest.mark.parametrize(
    "case",
    [*OFTEN, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda case: "-".join(case.values()),
)
def test_a_step_stays_on_its_device(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: Reading
) -> None:
    for asked in questions(tmp_path, monkeypatch, case):
        question, clients = asked.question, asked.clients
        public = clients._public(question, asked.me)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, fake:
            there = elsewhere(asked, mode)
            done = EXECUTIONS[case["engine"]].run(there, question, asked.me, public)
        values = [*done.sent.values(), *done.kept.values(), *([] if done.start is None else [done.start])]
        values = [open_sealed(one) if isinstance(one, Sealed) else one for one in values]
        assert {one.device for one in values if isinstance(one, Tensor)} <= {CARD}
    assert fake.places <= READ.keys(), fake.places - READ.keys()
