"""The identity of a run is that of everything that decides its results, and of nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import QUICK_KEYS, refused

from sordino.api import run
from sordino.deploy.terms import terms_of
from sordino.experiment import identity
from sordino.experiment.config import Experiment
from sordino.experiment.identity import identity_of
from sordino.experiment.prepare import prepare
from sordino.store.store import Store
from sordino.study.compare import compare

METHOD = """
from dataclasses import dataclass
from sordino.methods.dp_fedavg import DPFedAvg
from helping.scaling import scaled

@dataclass(frozen=True)
class Own(DPFedAvg):
    def run(self, fed, model):
        import late_helper
        super().run(fed, scaled(model))
"""
NETWORK = """
import math
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""
FILES = {
    "own_method.py": METHOD,
    "own_network.py": NETWORK,
    "helping/__init__.py": "",
    "helping/scaling.py": "from . import constants\n\ndef scaled(model):\n    return constants.FACTOR * model\n",
    "helping/constants.py": "FACTOR = 1\n",
    "late_helper.py": "import helping.unused_by_others\n",
    "helping/unused_by_others.py": "",
    "stranger.py": "",
}
KEYS: dict[str, Any] = QUICK_KEYS | {"method": "own_method:Own", "model": "own_network:Net", "epsilon": 4}


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Change a file of the user's own: text is put behind what stands in it, and its module is forgotten."""

    def forget() -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("own_method", "own_network", "helping", "late_helper", "stranger"):
                monkeypatch.delitem(sys.modules, name)

    def edited(name: str, text: str) -> None:
        with (tmp_path / "code" / name).open("a") as file:
            file.write(text)
        forget()
        importlib.invalidate_caches()

    for name, content in FILES.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    return edited


def found(**changes: Any) -> str:
    return prepare(Experiment.make(KEYS | changes)).identity


def test_what_decides_the_results_and_what_does_not() -> None:
    def of(*changes: dict[str, Any]) -> str:
        return identity_of(Experiment.make({"rounds": 3, "method": "feddpa"}, *changes).decisive(), "data")

    for harmless in ({"store": "x"}, {"workers": 2}, {"data_dir": "x"}, {"data": "moved"}, {"device": "cuda:1"}):
        assert of(harmless) == of()
    for harmless in ({"budget_over_runs": 9}, {"device": "cuda"}):
        assert of(harmless) == of()
    telling = [{"rounds": 4}, {"seed": 1}, {"epsilon": 1}, {"set": {"tau": 0.1}}, {"engine": "stacked"}]
    telling += [{"set": {"clipping": "quantile"}}, {"set": {"clipping": "quantile", "clipping.rate": 0.3}}]
    others = {of(change) for change in telling}
    other = identity_of(Experiment.make({"rounds": 3, "method": "feddpa"}).decisive(), "other data")
    assert len(others | {of(), other}) == len(telling) + 2


def test_a_number_is_the_same_however_it_is_written() -> None:
    """Zero, of which both ways are in use, and a network's options, which have no declared type, are as written."""

    def of(**settings: Any) -> dict[str, Any]:
        decided: dict[str, Any] = Experiment.make({"method": "dp-fedavg", "set": settings}).decisive()["set"]
        return {key: repr(value) for key, value in decided.items()}

    assert of(clip=1.0, epochs=2.0, rate=0.5) == of(clip=1, epochs=2, rate=0.5)
    assert of(clip=1) == {"clip": "1"}
    assert (of(momentum=0), of(momentum=0.0)) == ({"momentum": "0"}, {"momentum": "0.0"})
    assert of(**{"model.hidden": 16.0}) == {"model.hidden": "16.0"}
    one, other = (prepare(Experiment.make(QUICK_KEYS, {"set": {"clip": clip}})).identity for clip in (1, 1.0))
    assert one == other


@pytest.mark.parametrize("name", [name for name in FILES if name != "stranger.py"])
def test_an_edited_file_is_another_experiment(name: str, edit: Callable[[str, str], None]) -> None:
    """Also one that is imported by what is imported, and one that is imported only while the method runs."""
    before = found()
    assert found() == before
    edit(name, "\n# a change\n")
    assert found() != before


def test_what_happens_to_be_loaded_or_to_lie_beside_changes_nothing(edit: Callable[[str, str], None]) -> None:
    before = found()
    edit("stranger.py", "import own_method\n")
    importlib.import_module("stranger")
    importlib.import_module("late_helper")
    assert found() == before


def test_another_version_of_the_package_is_another_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(Experiment.make(QUICK_KEYS)).identity
    monkeypatch.setattr(identity, "VERSION", "0.0.0")
    assert prepare(Experiment.make(QUICK_KEYS)).identity != before


def test_a_comparison_runs_an_edited_method_anew(
    edit: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def runs() -> int:
        rows = compare(Experiment.make(KEYS | {"store": tmp_path / "store"}), ["own_method:Own"], seeds=1).rows
        (name,) = rows[0].runs
        assert name == Store(tmp_path / "store").all()[0].run
        return len(Store(tmp_path / "store").all())

    assert (runs(), runs()) == (1, 1)
    edit("own_method.py", "\n    rate: float = 0.2\n")
    assert (runs(), runs()) == (2, 2)
    one, other = ((row.summary or {})["accuracy"] for row in Store(tmp_path / "store").all())
    assert one != other
    edit("own_network.py", "# a change\n")
    assert runs() == 3
    monkeypatch.setattr(identity, "VERSION", "0.0.0")
    assert (runs(), runs()) == (4, 4)


def test_a_run_is_not_taken_up_with_other_code(edit: Callable[[str, str], None], tmp_path: Path) -> None:
    def stop(report: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path / "store", watch=stop, **KEYS)
    (row,) = Store(tmp_path / "store").all()
    edit("helping/constants.py", "FACTOR = 2\n")
    assert "other code of its method, network or features" in refused("resume", row.run, "--store", tmp_path / "store")


NOTEBOOK = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from sordino.method import Method, Result
from sordino.privacy.release import Update, sends

FACTOR = {factor}
TABLE = {{"a": [1, 2], "b": torch.ones(3) * {table}}}

def scaled(x):
    return {helper} * x

@dataclass(frozen=True)
class Mine(Method):
    title: ClassVar[str] = "mine"
    paper: ClassVar[str] = "none"
    scale: ClassVar[float] = {constant}
    clip: float = 0.5

    def run(self, fed, model):
        pass

    @sends(lambda self: {{"update": Update(clip="clip")}})
    def local(self, message, me, data):
        return Result(send={{"update": scaled(message["global"]) * FACTOR * self.scale * TABLE["b"].sum()}})
"""
AS_IT_WAS = {"factor": 1, "table": 1, "helper": 2, "constant": 1.0}


def typed(**changes: object) -> str:
    """The identity of a method that was typed into an interpreter."""
    module = ModuleType("typed_in")
    with mock.patch.dict(sys.modules, typed_in=module):
        exec(NOTEBOOK.format(**(AS_IT_WAS | changes)), vars(module))
        return identity_of({}, "data", module.Mine)


def test_code_without_files_is_known_by_all_that_it_names() -> None:
    """Helpers, globals and constants of the class decide what is sent, and the noise must not be the same for both."""
    assert typed() == typed()
    changed = [typed(factor=2), typed(table=2), typed(helper=3), typed(constant=3.0)]
    assert len({typed(), *changed}) == 5


def test_code_that_names_what_cannot_be_digested_never_has_the_same_identity() -> None:
    assert typed(factor="object() and 1") == typed(factor="object() and 1"), "the value counts, not how it was made"
    assert typed(factor="open") != typed(factor="open")


BACKBONE = """
import math
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)
        self.frozen = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.layer.plain = torch.zeros(2)
        self.change()

    def change(self):
        pass

    def forward(self, x):
        return self.layer(x.flatten(1))
"""
CHANGES = {
    "frozen weights": "self.frozen[1] = 1",
    "their sign": "self.frozen[2] = -0.0",
    "a buffer": "self.scale.fill_(2)",
    "one that is not saved": "self.unsaved[0] = 1e-30",
    "a plain attribute": "self.layer.plain[1] = 3",
    "trained weights": "self.layer.bias[0] = 7",
    "a type": "self.unsaved = self.unsaved.view(torch.int32)",
}


@pytest.fixture
def backbone(edit: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The user's network, whose weights another process may have changed: its source stays the same."""
    edit("own_network.py", BACKBONE)
    network = importlib.import_module("own_network").Net

    def changed(line: str) -> None:
        space: dict[str, Any] = {}
        exec(f"import torch\ndef change(self):\n    with torch.no_grad():\n        {line}", space)
        monkeypatch.setattr(network, "change", space["change"])

    return changed


@pytest.mark.parametrize("change", CHANGES)
def test_other_weights_of_an_own_network_are_another_experiment(change: str, backbone: Callable[[str], None]) -> None:
    """Frozen ones and buffers too, of which the vector of what is trained knows nothing."""
    before = found()
    assert found() == before
    backbone(CHANGES[change])
    assert found() != before


@pytest.mark.parametrize("change", CHANGES)
def test_sites_notice_other_weights(change: str, backbone: Callable[[str], None]) -> None:
    declared = {"clients": 4, "shape": [3], "labels": ["a", "b"], "method": "dp-fedavg", "model": "own_network:Net"}

    def of() -> str:
        return terms_of(Experiment.make(declared | {"minimum_cohort": 3, "epsilon": 4, "delta": 0.01})).identity

    before = of()
    assert of() == before
    backbone(CHANGES[change])
    assert of() != before


def test_a_run_with_other_frozen_weights_is_not_taken_up(backbone: Callable[[str], None], tmp_path: Path) -> None:
    def stop(report: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop, **KEYS)
    name = Store(tmp_path).all()[0].run
    backbone(CHANGES["frozen weights"])
    assert "other weights of these" in refused("resume", name, "--store", tmp_path)


def identity_of_files(folder: Path, **keys: Any) -> str:
    common = {"method": "dp-fedsgd", "epsilon": 4.0, "delta": 1e-4, "rounds": 2, "workers": 1, "model": None}
    return prepare(Experiment.make({**common, "data": str(folder), "allow_vacuous_delta": True, **keys})).identity


def test_cuts_that_were_read_from_others_are_another_experiment(tmp_path: Path) -> None:
    """The records of the two clients and the ends of their times are the same, what their gradients are is not: with
    equal noise the difference of two sums would be that of the raw ones."""
    found = set()
    for name, times in (("one", (10, 20, 30, 48)), ("other", (13, 17, 33, 48))):
        folder = tmp_path / name
        folder.mkdir()
        for client, own in (("a", range(1, 49)), ("b", range(1, 49)), ("c", times * 12)):
            rows = [f"{place},{time},{time % 2}" for place, time in enumerate(own)]
            (folder / f"{client}.csv").write_text("\n".join(["x,months,relapse", *rows]) + "\n")
        keys = {"task": "survival", "label": "months", "event": "relapse", "clients": 2, "model": "hazards"}
        found.add(identity_of_files(folder, **keys))
    assert len(found) == 2


def test_other_persons_among_the_test_records_are_another_experiment(tmp_path: Path) -> None:
    """Each counts as one in the evaluation that is paid for: its noise is not that of other persons'."""
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    found = set()
    for name, tested in (("one", "aabbccddee"), ("other", "aaabccddee")):
        folder = tmp_path / name
        folder.mkdir()
        for client in ("a", "b"):
            arrays = {"x": x + ord(client), "y": y, "x_test": x[:10] - ord(client), "y_test": y[:10]}
            codes = {"person": np.arange(20) // 2 + 100, "person_test": np.array(list(tested))}
            np.savez(folder / f"{client}.npz", **arrays, **codes)
        found.add(identity_of_files(folder, evaluation_share=0.1, model="logistic"))
    assert len(found) == 2


def test_another_class_that_is_looked_for_is_another_evaluation(tmp_path: Path) -> None:
    """Renamed labels decide nothing but what test records are counted by."""
    found: dict[float, set[str]] = {}
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    for name, labels in (("one", ("healthy", "ill")), ("other", ("0", "1")), ("third", ("a", "b"))):
        folder = tmp_path / name
        folder.mkdir()
        for client in ("a", "b"):
            np.savez(folder / f"{client}.npz", x=x + ord(client), y=np.array(labels)[y])
        for share in (0.0, 0.1):
            found.setdefault(share, set()).add(identity_of_files(folder, evaluation_share=share, model="logistic"))
    assert [len(one) for one in found.values()] == [1, 3]
