"""Users' networks of any kind from files to predictions: recurrent ones, attention, tokens, grouped convolutions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import sordino
from sordino import models
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.models.tokens import vocabulary
from sordino.simulator.step_cost import eager_seconds
from sordino.trained.export import export
from sordino.trained.models import load_models
from sordino.trained.predict import predict, probabilities


class Lstm(nn.Module):
    kind: type[nn.RNNBase] = nn.LSTM

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.cells, self.last = self.kind(shape[1], 8, batch_first=True), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


class Gru(Lstm):
    kind = nn.GRU


class Transformer(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(shape[1], 2, 8, 0.1, batch_first=True), 1)
        self.last = nn.Linear(shape[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).mean(1))


class Grouped(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(shape[0], 2 * shape[0], 3, groups=shape[0])
        self.last = nn.Linear(2 * shape[0] * (shape[1] - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.conv(x)).flatten(1))


class Words(nn.Module):
    """Words and their places; says nothing of tokens."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 6), nn.Embedding(shape[0], 6)
        self.cells, self.last = nn.GRU(6, 8, batch_first=True), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(self.words(x) + self.places(torch.arange(x.shape[1])))[0][:, -1])


class Declared(nn.Module):
    """Looks tokens up without a layer that is known."""

    inputs = "tokens:20"

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(20, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x].sum(1)


class Misdeclared(Declared):
    inputs = "tokens:many"


class Cumulated(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(shape[0] * shape[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1).cumsum(0))


KEYS = {
    **{"rounds": 1, "epsilon": 8.0, "delta": 1e-3, "workers": 1, "labels": ["0", "1"], "allow_vacuous_delta": True},
    **{"progress": False, "set": {"epochs": 1, "batch": 15}},
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Numbers and tokens of three clients, by which two classes can be told apart."""
    random = np.random.default_rng(0)
    for kind in ("numbers", "tokens"):
        (tmp_path / kind).mkdir()
    for client in range(3):
        y = random.integers(0, 2, 40)
        numbers = random.normal(size=(40, 4, 6)) + y[:, None, None]
        np.savez(tmp_path / "numbers" / f"client{client}.npz", x=numbers.astype(np.float32), y=y)
        np.savez(tmp_path / "tokens" / f"client{client}.npz", x=random.integers(0, 10, (40, 5)) + 10 * y[:, None], y=y)
    return tmp_path


@pytest.mark.parametrize("method", ["dp-fedavg-record", "dp-fedavg"])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Grouped, "numbers"),
        pytest.param(Words, "tokens", marks=pytest.mark.slow),
        pytest.param(Lstm, "numbers", marks=pytest.mark.slow),
        pytest.param(Gru, "numbers", marks=pytest.mark.slow),
        pytest.param(Transformer, "numbers", marks=pytest.mark.slow),
    ],
)
def test_networks_of_any_kind_are_trained(method: str, kind: type[nn.Module], data: str, files: Path) -> None:
    name, store = f"{__name__}:{kind.__name__}", files / "store"
    result = sordino.run(data=str(files / data), method=method, model=name, store=store, personal="own", **KEYS)
    assert result["epsilon"]["outsider"] <= 8.0
    found = predict(load_models(result["run"], store), 0, files / data / "client0.npz")
    assert found.probabilities.shape == (40, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "data"), [(Words, "tokens"), (Lstm, "numbers"), (Transformer, "numbers")])
def test_they_say_elsewhere_what_they_say_here(kind: type[nn.Module], data: str, files: Path, tmp_path: Path) -> None:
    name, store = f"{__name__}:{kind.__name__}", files / "store"
    result = sordino.run(data=str(files / data), method="dp-fedavg", model=name, store=store, personal="own", **KEYS)
    trained = load_models(result["run"], store)
    x = np.load(files / data / "client0.npz")["x"].astype(np.float32)
    said = probabilities(trained.about.meaning.task, trained.predictor(0), x)
    export(trained, 0, "torch", tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert np.allclose(program(torch.from_numpy(x)).detach().numpy(), said, atol=1e-5)
    export(trained, 0, "onnx", tmp_path / "model.onnx")
    (elsewhere,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"records": x})
    assert np.allclose(elsewhere, said, atol=1e-5)


def test_a_network_that_torch_cannot_export_is_told(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files / "store"
    name = f"{__name__}:Grouped"
    result = sordino.run(data=str(files / "numbers"), method="dp-fedavg", model=name, store=store, **KEYS)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such operation\nand much more")

    monkeypatch.setattr(torch.export, "export", fails)
    with pytest.raises(UserError, match=r"torch cannot write the network '.*:Grouped' as torch: no such operation$"):
        export(load_models(result["run"], store), 0, "torch", tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_a_network_that_mixes_records_is_refused_before_there_is_a_run(files: Path) -> None:
    with pytest.raises(UserError, match="The network Cumulated mixes the records of a batch"):
        sordino.run(
            data=str(files / "numbers"),
            method="dp-fedavg-record",
            model=f"{__name__}:Cumulated",
            store=files / "store",
            **KEYS,
        )
    assert not (files / "store").exists()


@pytest.mark.parametrize(("kind", "tokens"), [("Words", 20), ("Declared", 20), ("Grouped", None)])
def test_tokens_are_declared_or_seen(kind: str, tokens: int | None) -> None:
    shape = (5,) if tokens else (4, 6)
    module = models.build(f"{__name__}:{kind}", shape, 2)
    assert vocabulary(module) == tokens
    records = torch.randint(0, 20, (3, *shape)).float()
    assert module(records).shape == (3, 2)
    if tokens:  # what is no token counts as the nearest
        odd = torch.tensor([[-1.0, 25.0, float("nan"), 3.0, 4.0]])
        assert torch.equal(module(odd), module(torch.tensor([[0.0, 19.0, 0.0, 3.0, 4.0]])))


def test_a_declaration_that_says_no_number_is_told() -> None:
    with pytest.raises(UserError, match="inputs = 'tokens:many': write 'tokens:V' with the number of tokens"):
        models.build(f"{__name__}:Misdeclared", (5,), 2)


@pytest.mark.parametrize("change", [1.0, 0.5, -1.0])
def test_records_that_are_no_tokens_are_refused(change: float, files: Path) -> None:
    for path in (files / "tokens").iterdir():
        arrays = dict(np.load(path))
        np.savez(path, x=arrays["x"] + (change if change > 0 else -5), y=arrays["y"])
    keys = {key: value for key, value in KEYS.items() if key != "progress"}
    with pytest.raises(UserError, match="takes tokens, whole numbers from 0 to 19, but the records hold numbers from"):
        prepare(
            Experiment.make(
                keys | {"data": str(files / "tokens"), "method": "dp-fedavg", "model": f"{__name__}:Declared"}
            )
        )


def test_effort_of_layers_that_give_several_tensors() -> None:
    """Half a millisecond for each of two layers, and a product for each number that comes out and each that goes in."""
    module = Gru((4, 6), 2)
    products = (6 + 8) * 4 * 8 + 8 * 2
    outputs = 4 * 8 + 2
    assert eager_seconds(module, (4, 6), 10) == pytest.approx(2 * 5e-4 + 10 * (1.5e-10 * products + 2e-8 * outputs))
