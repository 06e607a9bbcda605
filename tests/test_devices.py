"""Every method's step and the gate on another device than the processor, without there being one.

The device is made up: tensors that say they lie elsewhere and hold their values here. Every operation that torch would
refuse on a real one, because its tensors lie on different devices, is refused; what comes out must be what comes out on
the processor. (Torch's own `FakeTensorMode` holds no values, and steps look at them: whether a norm is finite, which
records were drawn.) The device is called `meta`, because torch brings no other without hardware that differentiates.
"""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_networks import Convolutions
from helpers import ALL, KINDS, UNSTACKED
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from sordino import assembly
from sordino.experiment import run as running
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.federation import execution
from sordino.federation.client import Clients
from sordino.federation.execution import EXECUTIONS
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.methods import find
from sordino.privacy.gate import Gate
from sordino.store.store import Store
from sordino.tasks import Classification

ELSEWHERE = torch.device("meta")
COPYING = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class MixedDevicesError(AssertionError):
    """An operation got tensors of both devices."""


class Placed(Tensor):
    """A tensor that says it lies elsewhere; `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor, requires_grad: bool = False) -> Placed:
        made = Tensor._make_wrapper_subclass(
            cls, real.size(), real.stride(), real.storage_offset(), dtype=real.dtype, device=ELSEWHERE
        )
        made.held = real
        made.requires_grad_(requires_grad)
        return made

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: Placed) -> None:
        self.held = other.held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Placed({self.held})"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return computed(operation, arguments, keywords or {})


class Elsewhere(TorchDispatchMode):
    """While it lasts, tensors that are made or put elsewhere are `Placed`."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return computed(operation, arguments, keywords or {})


def computed(operation: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    """What an operation gives, where its tensors lie; refused where torch would refuse it."""
    given = [one for one in tree_flatten((arguments, keywords))[0] if isinstance(one, Tensor)]
    away = any(isinstance(one, Placed) for one in given)
    if operation not in COPYING:
        check(operation, given, away)
    target = keywords.get("device")
    if target is not None:
        away = torch.device(target) == ELSEWHERE
        keywords = {**keywords, "device": torch.device("cpu")}
    if operation is torch.ops.aten.copy_.default:
        away = isinstance(arguments[0], Placed)
    real = operation(*tree_map(value_of, arguments), **tree_map(value_of, keywords))
    if not away:
        return real
    if torch.Tag.inplace_view in operation.tags:  # the shape changes in place: that of the tensor which says so, too
        with no_dispatch():
            operation(*arguments, **keywords)
    changed = {id(one.held): one for one in given if isinstance(one, Placed)}
    return tree_map(lambda one: changed.get(id(one), Placed(one)) if isinstance(one, Tensor) else one, real)


def check(operation: Any, given: list[Tensor], away: bool) -> None:
    """Refuse tensors of both devices, but for single numbers here, which torch takes along, and places in an index."""
    if not away:
        return
    forgiven = torch.Tag.pointwise in operation.tags
    here = [one for one in given if not isinstance(one, Placed) and not (forgiven and one.dim() == 0)]
    if operation.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_):
        here = here if not isinstance(given[0], Placed) else []
    if here:
        raise MixedDevicesError(f"{operation} got tensors of both devices, here {[tuple(one.shape) for one in here]}")


def value_of(one: Any) -> Any:
    return one.held if isinstance(one, Placed) else one


def test_mixing_is_seen() -> None:
    with Elsewhere():
        there = torch.ones(3, device=ELSEWHERE)
        assert there.device == ELSEWHERE
        assert (there + torch.ones(3).to(ELSEWHERE)).cpu().tolist() == [2.0, 2.0, 2.0]
        assert float((there * 2).sum()) == 6.0
        assert (there * torch.tensor(2.0)).device == ELSEWHERE, "torch takes single numbers along"
        for mixed in (
            lambda: there + torch.ones(3),
            lambda: torch.ones(3).add_(there),
            lambda: torch.stack([there, torch.ones(3)]),
            lambda: torch.ones(3)[there.long()],
            lambda: torch.ones(3) @ there,
        ):
            with pytest.raises(MixedDevicesError):
                mixed()
        with pytest.raises((TypeError, RuntimeError, NotImplementedError)):
            there.numpy()


class Counting(TorchDispatchMode):
    """While it lasts, the number of groups of each convolution is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if operation is torch.ops.aten.convolution.default:
            self.groups.append(arguments[-1])
        return operation(*arguments, **(keywords or {}))


def test_stacked_convolutions_are_one_with_a_group_for_each_client() -> None:
    """And their gradients are those of each client by itself."""
    learner = Learner(Convolutions((1, 8, 8), 10), Classification.numbered(10))
    flat = flatten(learner.written)
    models = flat + 0.1 * torch.randn(5, len(flat), generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(30).reshape(5, 6) % 10

    def gradient(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return learner.stacked_gradient(flat, Batch(x, y, y, None))

    with Counting() as counted:
        stacked = vmap(gradient)(models, x, y)
    assert counted.groups == [5]
    for place in range(5):
        alone = learner.gradient(models[place].clone(), Batch(x[place], y[place], y[place], None))
        assert torch.allclose(stacked[place], alone, atol=1e-6)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients work elsewhere; the server stays here."""
    monkeypatch.setattr(assembly, "clients_of", clients_elsewhere)
    # What torch does otherwise because of the device's name: it has no random numbers, no bf16, and no values.
    monkeypatch.setattr(execution, "_seed_dropout", lambda seed, device: torch.default_generator.manual_seed(seed))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *values, device=None, **keys: made(*values, **keys).to(device or "cpu"))


def clients_elsewhere(prepared: Prepared, gate: Gate) -> Clients:
    module = copy.deepcopy(prepared.learner.written)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(Placed(parameter.detach()))
    engine = EXECUTIONS[prepared.choice.engine]
    return Clients(
        prepared.method, Learner(module, Classification.numbered(10)), prepared.data, gate, engine, str(ELSEWHERE)
    )


RULES: list[dict[str, Any]] = [
    *({"clipping": rule} for rule in ("quantile", "median", "layer-wise")),
    {"clipping": "ppo", "clipping.reads": "metrics"},
    {"optimizer": "adam"},
    {"momentum": 0.9},
]
BARE: list[dict[str, Any]] = [
    *({"method": name, "variant": variant, "engine": "one-by-one"} for name, variant in ALL),
    *(
        {"method": name, "variant": variant, "engine": "stacked"}
        for name, variant in ALL
        if (name, variant) not in UNSTACKED
    ),
]
OFTEN = {(name, "sound") for name in KINDS} | {("fedglp-adp", "sound"), ("adadp-cfl", "paper")}
CASES: list[dict[str, Any]] = [
    *(case for case in BARE if (case["method"], case["variant"]) in OFTEN),
    {"method": "adadp-cfl", "set": {"clipping": "percentile"}},
    {"method": "dp-fedavg-record", "model": "device_networks:Convolutions"},
    *(
        {"method": "dp-fedavg", "model": f"device_networks:{one}", "engine": "stacked"}
        for one in ("Convolutions", "Residual")
    ),
]
LONG: list[dict[str, Any]] = [
    *(case for case in BARE if (case["method"], case["variant"]) not in OFTEN),
    {"method": "fedglp-adp", "variant": "paper", "set": {"clipping": "fixed"}},
    *({"method": name, "model": "device_networks:Convolutions"} for name in ("feddpa", "fedglp-adp")),
    *({"method": "dp-fedavg", "engine": way, "set": rule} for rule in RULES for way in ("one-by-one", "stacked")),
]


def finished(folder: Path, mode: AbstractContextManager[Any], **keys: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The summary and the models of a run of two rounds, without what differs between equal runs."""
    usual = {"clients": 4, "rounds": 2, "model": "mlp", "noise_multiplier": 20.0, "workers": 1, "store": folder}
    usual |= {"partition": "iid", "engine": "one-by-one", "records": 250}
    # At record level all records at each step: what they pay is known without distributions.
    settings = {"epochs": 1, "batch": 1000 if find(keys["method"]).unit == "record" else 30} | keys.pop("set", {})
    # The same noise in both, named without the values, which differ in their last bits.
    prepared = replace(prepare(Experiment.make(usual, keys, {"set": settings})), repeats=True, needs_nonce=False)
    store = Store(folder)
    with mode:
        summary = running.start(prepared, store)
    models = load_file(store.path(summary.run) / "models.safetensors")
    store.close()
    return {key: value for key, value in summary.to_dict().items() if key not in ("run", "seconds", "accuracy")}, models


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda case: "-".join(str(value) for value in case.values()),
)
def test_a_run_elsewhere_is_the_run_here(case: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    here, models_here = finished(tmp_path / "here", contextlib.nullcontext(), **case)
    request.getfixturevalue("elsewhere")
    there, models_there = finished(tmp_path / "there", Elsewhere(), **case)
    for summary in (here, there):  # these follow from probabilities, which are as near as the models
        summary.pop("metrics")
        summary.pop("fairness")
    assert there == here
    # Single records are scaled down a little more there: other devices are granted shorter factors in products.
    near = 5e-4 if find(case["method"]).unit == "record" else 1e-5
    if case["method"] == "dp-fedsgd":
        near = 5e-3  # its server takes steps of up to 8 along such sums
    if (case["method"], case.get("variant")) == ("dp-scaffold", "paper"):
        near = 5e-2  # its thresholds are medians of such norms, and its variates repeat their differences
    for name in models_here.keys() - {"metrics", "metrics_known"}:
        assert torch.allclose(models_there[name], models_here[name], atol=near), name
