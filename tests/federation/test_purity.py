"""Nothing that a script can reach has seen raw records, and nothing that a step writes down reaches others."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import io
import itertools
import logging
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino
from sordino.assembly import gate_of, simulate
from sordino.errors import UserError
from sordino.experiment.prepare import Prepared
from sordino.federation.blending import instructions
from sordino.federation.client import Question
from sordino.method import Method, Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.privacy.release import Update, sends
from sordino.simulator.local_transport import Simulation
from sordino.testing.case import Case, OneRound
from sordino.util.processes import single_threaded

SEEN: dict[str, Any] = {}
"""Findings of a method, for tests to look at."""
LIST: list[Any] = []
TABLE: dict[str, Any] = {"inner": {"numbers": [1, 2]}}
ARRAY = np.zeros(3)
COUNT = 0


@dataclass(frozen=True)
class Plain(Method):
    """One clipped update of each client."""

    title: ClassVar[str] = "pure"
    paper: ClassVar[str] = "none"
    clip: float = 0.5
    lists: list[Any] = field(default_factory=list)
    cache: ClassVar[dict[str, Any]] = {}

    def needs_public(self) -> bool:
        return True

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": torch.tensor([0.5])})
            server.model = server.model + got.mean("update")
            self.look(fed, got)

    def look(self, fed: Any, got: Any) -> None:
        return

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = self.descent(data).epoch(message["global"])
        self.leave(data, model)
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])

    def leave(self, data: Any, model: Any) -> None:
        return


def run_once(method: Method, folder: Path, **keys: Any) -> OneRound:
    return OneRound(Case(method, folder).prepared(**keys), folder)


# ---- what a script can reach


class SharedModule(Plain):
    """Publishes the parameters of the network with which it judges models on public records."""

    def look(self, fed: Any, got: Any) -> None:
        learner = fed.public().learner
        SEEN["parameters"] = torch.cat([p.detach().flatten().clone() for p in learner.module.parameters()])
        SEEN["written"] = torch.cat([p.detach().flatten().clone() for p in learner.written.parameters()])


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
def test_the_servers_network_is_not_the_clients(engine: str, tmp_path: Path) -> None:
    once = run_once(SharedModule(), tmp_path, engine=engine)
    again = Case(SharedModule(), tmp_path).prepared(engine=engine)
    for name in ("parameters", "written"):
        assert torch.equal(SEEN[name], again.initial), name
        models = once.memory["model"]
        assert not any(torch.allclose(SEEN[name], model) for model in models)


def reachable(value: Any, seen: dict[int, Any], depth: int = 8) -> Iterator[Any]:
    """Everything that can be reached by names without an underscore in front, by entries and by calls without
    arguments of `public`."""
    if id(value) in seen or depth == 0:
        return
    seen[id(value)] = value
    yield value
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    elif isinstance(value, nn.Module):
        inside = [*value.parameters(), *value.buffers()]
    elif not isinstance(value, Tensor | np.ndarray | str | bytes | int | float | type):
        names = [name for name in dir(value) if not name.startswith("_")]
        for name in names:
            try:
                found = getattr(value, name)
            except Exception:  # a property that is not for this run
                continue
            inside.append(found() if name == "public" else found)
    for one in inside:
        if not callable(one) or isinstance(one, nn.Module):
            yield from reachable(one, seen, depth - 1)


class Walking(Plain):
    """Goes through everything that it can reach after each question."""

    def look(self, fed: Any, got: Any) -> None:
        SEEN["reached"] = [one for root in (fed, got, self) for one in reachable(root, {})]


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
def test_nothing_that_a_script_can_reach_holds_a_clients_records_or_model(engine: str, tmp_path: Path) -> None:
    once = run_once(Walking(), tmp_path, engine=engine)
    data, models = once.clients.data.train, once.memory["model"]
    tensors = [one.detach().cpu() for one in SEEN["reached"] if isinstance(one, Tensor)]
    assert len(tensors) > 4, "the public records and the network, at the least"
    raw = {one.untyped_storage().data_ptr() for one in (data.x, data.y)}
    assert not any(one.untyped_storage().data_ptr() in raw for one in tensors)
    pieces = [piece for model in models for piece in once.clients.learner.layout.named(model).values()]
    for one in tensors:
        assert not any(one.shape == piece.shape and torch.allclose(one, piece) for piece in pieces)
    own = (once.clients, once.clients.learner, once.clients.method, once.clients.learner.module)
    assert not any(one is mine for one in SEEN["reached"] for mine in own)


class Peeking(Plain):
    """A step that looks at the network as it finds it."""

    def leave(self, data: Any, model: Any) -> None:
        return

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        left = torch.cat([p.detach().flatten() for p in data.learner.module.parameters()])
        result = Plain.local(self, message, me, data)
        return dataclasses.replace(result, keep={**result.keep, "left": left})

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model, "left": model}


def test_a_step_does_not_find_another_clients_model_in_the_network(tmp_path: Path) -> None:
    once = run_once(Peeking(), tmp_path, engine="one-by-one")
    assert not once.memory["left"].any()


# ---- what a step writes down


class OnItself(Plain):
    """Writes past the frozen dataclass."""

    def leave(self, data: Any, model: Any) -> None:
        object.__setattr__(self, "note", model)


class InAField(Plain):
    """Appends to a hyper-parameter."""

    def leave(self, data: Any, model: Any) -> None:
        self.lists.append(float(data.count))


class OnTheClass(Plain):
    """Sets a class attribute."""

    def leave(self, data: Any, model: Any) -> None:
        type(self).note = model


class InACache(Plain):
    """Fills a table of its class."""

    def leave(self, data: Any, model: Any) -> None:
        self.cache[f"n{len(self.cache)}"] = model


class InAGlobal(Plain):
    """Counts in a variable of its module."""

    def leave(self, data: Any, model: Any) -> None:
        global COUNT  # noqa: PLW0603
        COUNT += 1


class InAList(Plain):
    """Appends to a list of its module."""

    def leave(self, data: Any, model: Any) -> None:
        LIST.append(model)


class DeepInATable(Plain):
    """Writes deep into a table of its module."""

    def leave(self, data: Any, model: Any) -> None:
        TABLE["inner"]["numbers"][0] += 1


class InAnArray(Plain):
    """Writes into an array of its module."""

    def leave(self, data: Any, model: Any) -> None:
        ARRAY[0] += 1


class InADefault(Plain):
    """Appends to a mutable default."""

    def leave(self, data: Any, model: Any, found: list[Any] = []) -> None:  # noqa: B006
        found.append(model)


class OnAFunction(Plain):
    """Sets an attribute of a function of its module."""

    def leave(self, data: Any, model: Any) -> None:
        run_once.note = model  # type: ignore[attr-defined]


def closing() -> Any:
    held: list[Any] = []

    def leave(self: Any, data: Any, model: Any) -> None:
        held.append(model)

    return leave


class InAClosure(Plain):
    """Appends to what its function closes over."""

    leave = closing()


BOXES: dict[str, Any] = {
    "deque": collections.deque([1]),
    "bytearray": bytearray(3),
    "array of numbers": array.array("d", [0.0]),
    "array of objects": np.array([[], None], dtype=object),
    "norm": nn.BatchNorm1d(2),
    "nested norm": nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(nn.BatchNorm1d(2))))),
    "tensor": torch.zeros(2),
    "large tensor": torch.zeros(20_000),
    "view": memoryview(bytearray(3)),
    "parameter": nn.Parameter(torch.zeros(2)),
    "namespace": types.SimpleNamespace(inner=types.SimpleNamespace(seen=0)),
    "user's dictionary": collections.UserDict(),
    "file in memory": io.BytesIO(),
    "numpy's generator": np.random.default_rng(0),
    "Python's generator": random.Random(0),
    "torch's generator": torch.Generator().manual_seed(0),
    "method of a generator": np.random.default_rng(0).normal,
    "counter": itertools.count(),
    "iterator": iter([1] * 99),
    "generator": (number for number in range(99)),
}
"""Things of other packages that can remember."""


class Notes:
    """A class of the module that is no method."""

    seen: ClassVar[list[int]] = []


@dataclass(slots=True)
class Slotted:
    """An object without a table of attributes."""

    seen: int = 0


@functools.lru_cache(maxsize=4)
def remembered(number: int) -> list[int]:
    return [number]


SLOTTED, PART = Slotted(), functools.partial(list, [[1]])
WRITES: dict[str, Callable[[], Any]] = {
    "deque": lambda: BOXES["deque"].append(2),
    "bytearray": lambda: BOXES["bytearray"].__setitem__(0, BOXES["bytearray"][0] ^ 1),
    "array of numbers": lambda: BOXES["array of numbers"].append(1.0),
    "array of objects": lambda: BOXES["array of objects"][0].append(1),
    "norm": lambda: BOXES["norm"](torch.randn(4, 2)),
    "nested norm": lambda: BOXES["nested norm"](torch.randn(4, 2)),
    "tensor": lambda: BOXES["tensor"].numpy().__iadd__(1.0),
    "large tensor": lambda: BOXES["large tensor"].add_(1.0),
    "view": lambda: BOXES["view"].__setitem__(0, BOXES["view"][0] ^ 1),
    "parameter": lambda: BOXES["parameter"].sum().backward(),
    "namespace": lambda: setattr(BOXES["namespace"].inner, "seen", BOXES["namespace"].inner.seen + 1),
    "user's dictionary": lambda: BOXES["user's dictionary"].setdefault(len(BOXES["user's dictionary"])),
    "file in memory": lambda: BOXES["file in memory"].write(b"1"),
    "numpy's generator": lambda: BOXES["numpy's generator"].normal(size=2),
    "Python's generator": lambda: BOXES["Python's generator"].randint(0, 9),
    "torch's generator": lambda: torch.randn(2, generator=BOXES["torch's generator"]),
    "method of a generator": lambda: BOXES["method of a generator"](size=2),
    "counter": lambda: next(BOXES["counter"]),
    "iterator": lambda: next(BOXES["iterator"]),
    "generator": lambda: next(BOXES["generator"]),
    "class": lambda: Notes.seen.append(1),
    "slots": lambda: setattr(SLOTTED, "seen", SLOTTED.seen + 1),
    "cache": lambda: [remembered(number) for number in range(remembered.cache_info().misses + 1)],
    "cached value": lambda: remembered(0).append(1),
    "part of a function": lambda: PART.args[0][0].append(1),
}


@dataclass(frozen=True)
class Elsewhere(Plain):
    """Leaves a note in something that its module holds."""

    where: str = ""

    def leave(self, data: Any, model: Any) -> None:
        WRITES[self.where]()


@pytest.mark.parametrize("where", WRITES)
def test_whatever_remembers_is_looked_into(where: str, tmp_path: Path) -> None:
    remembered(0)
    with pytest.raises(UserError, match=r"The step local changed .*past the gate"):
        run_once(Elsewhere(where=where), tmp_path, engine="one-by-one")


class OnTheNetwork(Plain):
    """Sets an attribute of the network, which Sordino wrote."""

    def leave(self, data: Any, model: Any) -> None:
        data.learner.module.note = model


class OnTheLearner(Plain):
    """Sets an attribute of what takes gradients."""

    def leave(self, data: Any, model: Any) -> None:
        data.learner.note = model


class Harmless(Plain):
    """Reads and logs, which fills caches of other packages."""

    def leave(self, data: Any, model: Any) -> None:
        LOG.debug("%s %s %s", hash(PLACE), str(PLACE), remembered(0))
        assert BOXES["norm"].running_mean is not None


LOG, PLACE = logging.getLogger("pure"), Path("a") / "b"


def test_a_step_may_read(tmp_path: Path) -> None:
    remembered(0)
    run_once(Harmless(), tmp_path, engine="one-by-one")


def made_in_a_function() -> Plain:
    class Inner(Plain):
        """Sets an attribute of its class, which no module holds."""

        def leave(self, data: Any, model: Any) -> None:
            type(self).note = model

    return Inner()


IMPURE = [
    *(OnItself(), InAField(), OnTheClass(), InACache(), InAGlobal(), InAList(), DeepInATable(), InAnArray()),
    *(InADefault(), OnAFunction(), InAClosure(), OnTheNetwork(), OnTheLearner(), made_in_a_function()),
]


@pytest.mark.parametrize("method", IMPURE, ids=lambda one: type(one).__name__)
def test_what_a_step_leaves_lying_about_ends_the_run(method: Method, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The step local changed .*past the gate"):
        run_once(method, tmp_path, engine="one-by-one")


def test_a_step_has_a_copy_of_the_method(tmp_path: Path) -> None:
    method = OnItself()
    with pytest.raises(UserError):
        run_once(method, tmp_path, engine="one-by-one")
    assert not hasattr(method, "note")


def test_a_pure_step_is_let_be(tmp_path: Path) -> None:
    run_once(Plain(), tmp_path)


# ---- what a user's network remembers


class Net(nn.Module):
    """A network that remembers nothing but what it makes once."""

    table: Tensor | None = None

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, self.last.in_features)
        self.remember(x)
        return self.last(x.flatten(1) + self.table)

    def remember(self, x: Tensor) -> None:
        return


class InItsModule(Net):
    """Appends to a list of its module."""

    def remember(self, x: Tensor) -> None:
        LIST.append(float(x.detach().mean()))


class Late(Net):
    """Keeps a mean where it has seen many batches: not while it is tried out."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.mean = np.zeros(3)

    def remember(self, x: Tensor) -> None:
        if len(x) not in (1, 3, 33):
            self.mean += float(x.detach().mean())


def _hook(module: nn.Module, x: Any) -> None:
    LIST.append(float(x[0].detach().mean()))


def hooked(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of torch's layers, on which a function of this module hangs."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    network.register_forward_pre_hook(_hook)
    return network


class Hung:
    """An object that is called behind a layer, and keeps what the layer said where there are many records."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, layer: nn.Module, x: Any, outputs: Tensor) -> Tensor:
        return self.shift(outputs)

    def shift(self, outputs: Tensor) -> Tensor:
        shifted = outputs + self.mean
        if len(outputs) not in (1, 3, 33):
            self.mean += float(outputs.detach().mean())
        return shifted


def object_hung(shape: tuple[int, ...], classes: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    network[1].register_forward_hook(Hung())
    return network


def method_hung(shape: tuple[int, ...], classes: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    network[1].register_forward_hook(functools.partial(Hung().__call__))
    return network


@functools.lru_cache
def _cached_hook(layer: nn.Module, x: Any, outputs: Tensor) -> None:
    if len(outputs) not in (1, 3, 33):
        LIST.append(float(outputs.detach().mean()))


def cached_hung(shape: tuple[int, ...], classes: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    network[1].register_forward_hook(_cached_hook)
    return network


def backbone_hung(shape: tuple[int, ...], classes: int) -> nn.Module:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4))
    backbone[1].register_forward_hook(Hung())
    return sordino.adapt(backbone, shape, classes, rank=1, trained_on="nothing")


@pytest.mark.parametrize(
    "network", ["InItsModule", "Late", "hooked", "object_hung", "method_hung", "cached_hung", "backbone_hung"]
)
def test_what_a_network_remembers_ends_the_run(network: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The step local changed .*past the gate"):
        OneRound(Case(DPFedAvg(), tmp_path).prepared(model=f"{__name__}:{network}", engine="one-by-one"), tmp_path)


class WhenEvaluated(Net):
    """Remembers what it is evaluated on, once a test wants it to."""

    def remember(self, x: Tensor) -> None:
        if not torch.is_grad_enabled() and SEEN.get("evaluation"):
            LIST.append(x)


EVALUATIONS: dict[str, Callable[[Simulation, Prepared], Any]] = {
    "accuracies": lambda clients, prepared: clients.accuracies([0, 1], prepared.initial),
    "own accuracies": lambda clients, prepared: clients.accuracies([0, 1], None),
    "metrics": lambda clients, prepared: clients.metrics([0, 1], prepared.initial),
    "blending": lambda clients, prepared: clients.blend(
        [0, 1],
        instructions(
            "blend", prepared.method, prepared.schedule, prepared.allowance, np.array([9] * 10), prepared.initial, None
        ),
    ),
    "round": lambda clients, prepared: clients.ask(
        Question(9, 1, "local", {"global": prepared.initial, "clip": torch.tensor([0.5])}, [0, 1]), True, lambda: None
    ),
}


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
@pytest.mark.parametrize("what", EVALUATIONS)
def test_what_a_network_remembers_of_an_evaluation_ends_the_run(
    what: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network could add it to the next client's gradients."""
    keys = {"model": f"{__name__}:WhenEvaluated", "engine": engine, "personal": "blend", "clients": 10}
    prepared = Case(Plain(), tmp_path).prepared(**keys)
    evaluate = EVALUATIONS[what]
    with single_threaded(), simulate(prepared, gate_of(prepared), tmp_path) as clients:
        EVALUATIONS["round"](clients, prepared)  # pure, and then each has a model
        evaluate(clients, prepared)
        monkeypatch.setitem(SEEN, "evaluation", True)
        with pytest.raises(UserError, match=rf"The (evaluation|blending) changed {__name__}.LIST, .*past the gate"):
            evaluate(clients, prepared)
        monkeypatch.delitem(SEEN, "evaluation")
        with pytest.raises(UserError, match="past the gate"):
            evaluate(clients, prepared)
    LIST.clear()


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
def test_a_network_that_remembers_nothing_is_let_be(engine: str, tmp_path: Path) -> None:
    OneRound(Case(DPFedAvg(), tmp_path).prepared(model=f"{__name__}:Net", engine=engine), tmp_path)


def test_networks_and_methods_of_sordino_are_not_searched(tmp_path: Path) -> None:
    once = OneRound(Case(DPFedAvg(), tmp_path).prepared(), tmp_path)
    assert all(name.startswith("self.") for name in once.clients._surroundings._seen())
