"""Low-rank adapters in frozen networks: what they compute, what is trained, and whole runs at both levels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call

import sordino
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.network import Batch, Learner
from sordino.learning.per_record import Bookkeeper
from sordino.learning.singles import Singles
from sordino.models.adapters import Adapted, LowRank, adapt
from sordino.models.checks import check, try_out
from sordino.models.tokens import declare_tokens, vocabulary
from sordino.tasks import Classification
from sordino.trained.models import load_models


def perceptron(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 12), nn.ReLU(), nn.Linear(12, 6))


class Attentive(nn.Module):
    """Attention within a record, whose layers of torch read the weights of linear layers by themselves."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(shape[-1], 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x.flatten(1, -2))).mean(1)


def normed(shape: tuple[int, ...]) -> nn.Module:
    network = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    network.train()
    with torch.no_grad():
        network(3 + 2 * torch.randn(50, *shape))
    return network


def adapted(shape: tuple[int, ...], classes: int, kind: str = "perceptron", rank: int = 2) -> Adapted:
    torch.manual_seed(3)
    makers = {"perceptron": perceptron, "attentive": Attentive, "normed": normed}
    return adapt(makers[kind](shape), shape, classes, rank=rank, trained_on="nothing")


def from_file(shape: tuple[int, ...], classes: int, weights: str = "backbone.safetensors") -> nn.Module:
    backbone = perceptron(shape)
    backbone.load_state_dict(load_file(weights))
    return adapt(backbone, shape, classes, trained_on="an archive")


def moved(network: nn.Module) -> nn.Module:
    """The network with adapters that do something."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter)
    return network


def test_an_adapter_adds_a_product_of_low_rank() -> None:
    layer = nn.Linear(3, 2)
    found = LowRank(layer, rank=1, alpha=0.5)
    x = torch.randn(5, 3)
    assert torch.equal(found(x), layer(x))  # B is zero at the beginning
    found.down.weight.data = torch.tensor([[1.0, 2.0, 0.0]])
    found.up.weight.data = torch.tensor([[3.0], [-1.0]])
    change = torch.tensor([[3.0, 6.0, 0.0], [-1.0, -2.0, 0.0]])
    torch.testing.assert_close(found(x), x @ (layer.weight + 0.5 * change).T + layer.bias)
    torch.testing.assert_close(found.weight, layer.weight + 0.5 * change)


@pytest.mark.parametrize("kind", ["perceptron", "attentive", "normed"])
def test_training_begins_with_the_backbone_and_moves_adapters_and_head_alone(kind: str) -> None:
    shape = (1, 8, 8)
    torch.manual_seed(3)
    backbone = {"perceptron": perceptron, "attentive": Attentive, "normed": normed}[kind](shape).eval()
    network = adapted(shape, 3, kind)
    x = torch.randn(4, *shape)
    with torch.no_grad():
        torch.testing.assert_close(network.backbone(x).flatten(1), backbone(x).flatten(1))
    names = Learner(network, Classification.numbered(3)).layout.names
    assert all(name.startswith("head.") or ".down." in name or ".up." in name for name in names)
    check(network)
    try_out("adapted", network, shape, 3)


def test_only_adapters_and_head_are_counted() -> None:
    network = adapted((1, 8, 8), 3, rank=2)
    assert Learner(network, Classification.numbered(3)).layout.size == 2 * (64 + 12) + 2 * (12 + 6) + (6 + 1) * 3


def test_only_chosen_layers_are_adapted() -> None:
    network = adapt(perceptron((4,)), (4,), 2, trained_on="nothing", only=lambda name: name == "3")
    assert [name for name, one in network.named_modules() if isinstance(one, LowRank)] == ["backbone.3"]


class Words(nn.Module):
    """Looks tokens up without a layer that is known."""

    inputs = "tokens:7"

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(7, 4)), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.table[x].mean(1))


@pytest.mark.parametrize("backbone", [Words, lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 6))])
def test_backbones_of_tokens_are_adapted(backbone: Any) -> None:
    network = adapt(backbone(), (5,), 2, trained_on="nothing")
    declare_tokens(network, (5,))
    assert vocabulary(network) == 7
    check(network)
    try_out("adapted", network, (5,), 2)
    assert isinstance(Learner(network, Classification.numbered(2)).keeper((5,)), Singles)


def test_a_layer_in_several_places_has_one_adapter_in_all_of_them() -> None:
    shared, norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
    backbone = nn.Sequential(shared, norm, nn.ReLU(), shared, norm)
    network = adapt(backbone, (6,), 2, rank=1, trained_on="nothing")
    assert isinstance(backbone[0], LowRank)
    assert (backbone[3], backbone[4]) == (backbone[0], backbone[1])
    check(network)
    assert sum(one.numel() for one in network.backbone.parameters() if one.requires_grad) == 6 + 6
    chosen = adapt(nn.Sequential(first := nn.Linear(6, 6), first), (6,), 2, trained_on="nothing", only="1".__eq__)
    assert isinstance(chosen.backbone[0], LowRank), "chosen by its second name"


def test_a_backbone_that_is_one_layer_is_adapted() -> None:
    network = adapt(nn.Linear(4, 3), (4,), 2, trained_on="nothing")
    assert isinstance(network, Adapted)
    assert isinstance(network.backbone, LowRank)


def test_the_backbone_stays_in_evaluation_mode() -> None:
    network = moved(adapted((1, 8, 8), 3, "attentive")).train()  # it has dropout
    x = torch.randn(6, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(network(x), network(x), rtol=0, atol=0)


def test_torchs_fast_paths_read_the_adapted_weights() -> None:
    network = moved(adapted((1, 8, 8), 3, "attentive")).eval()
    x = torch.randn(6, 1, 8, 8)
    with torch.no_grad():
        fast = network(x)
    torch.testing.assert_close(fast, network(x.requires_grad_()), rtol=1e-4, atol=1e-4)


def test_frozen_batch_norm_keeps_records_apart() -> None:
    network = moved(adapted((1, 8, 8), 3, "normed"))
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(network(x)[:1], network(x[:1]))


@pytest.mark.parametrize(("kind", "keeper"), [("perceptron", Bookkeeper), ("attentive", Singles), ("normed", None)])
def test_gradients_of_single_records(kind: str, keeper: type | None) -> None:
    shape = (1, 8, 8)
    network = moved(adapted(shape, 3, kind))
    learner = Learner(network, Classification.numbered(3))
    flat = torch.cat([p.detach().flatten() for p in network.parameters() if p.requires_grad])
    x, y = torch.randn(5, *shape), torch.tensor([0, 1, 2, 1, 0])
    assert keeper is None or isinstance(learner.keeper(shape), keeper)
    squares = torch.zeros_like(flat)
    for record in range(5):
        point = flat.clone().requires_grad_()
        outputs = functional_call(network, learner.layout.named(point), (x[record : record + 1],))
        nn.functional.cross_entropy(outputs, y[record : record + 1]).backward()
        assert point.grad is not None
        squares += point.grad.square()
    found = learner.booked_squares(flat, Batch(x, y, torch.arange(5), None))
    torch.testing.assert_close(found, squares, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd"])
def test_runs_at_both_levels_train_adapters(method: str, tmp_path: Path) -> None:
    result = sordino.run(
        data="digits", method=method, model="test_adapters:adapted", clients=5, epsilon=8, delta=1e-5, rounds=2,
        personal="own", store=tmp_path, workers=1, progress=False,
    )  # fmt: skip
    assert any("which no data have trained" in note for note in result["notes"])
    trained = load_models(result["run"], tmp_path).shared_model()
    start = adapted((1, 8, 8), 10)
    frozen = dict(start.named_parameters())
    for name, parameter in trained.named_parameters():
        assert torch.equal(parameter, frozen[name]) == (".layer." in name), name


def test_other_frozen_weights_are_another_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    identities, notes = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        save_file(perceptron((1, 8, 8)).state_dict(), "backbone.safetensors")
        given = {"data": "digits", "clients": 5, "model": "test_adapters:from_file", "rounds": 1}
        prepared = prepare(Experiment.make(given))
        identities.append(prepared.identity)
        notes.append([note for note in prepared.notes if "trained on an archive, as its author declares" in note])
    assert identities[0] != identities[1]
    assert all(len(one) == 1 for one in notes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rank": 0}, "The rank of adapters is a whole number from 1 on, not 0"),
        ({"rank": True}, "whole number"),
        ({"alpha": -1.0}, "positive number"),
        ({"alpha": float("inf")}, "positive number"),
        ({"trained_on": " "}, "Say which public data"),
        ({"only": lambda name: False}, "no linear layers to put adapters into"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        adapt(perceptron((4,)), (4,), 2, **{"trained_on": "nothing", **arguments})


@pytest.mark.parametrize(
    ("backbone", "sentence"),
    [
        ("encoder", "is a torch.nn.Module, not a str"),
        (nn.Linear(9, 3), r"fails on records of shape \(4,\): RuntimeError"),
        (nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), r"have shape \(1,\); they must be"),
    ],
    ids=["no module", "another shape", "no row for each record"],
)
def test_backbones_without_features_are_told(backbone: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        adapt(backbone, (4,), 2, trained_on="nothing")


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd"])
def test_an_encoder_of_text_is_adapted(method: str, tmp_path: Path) -> None:
    """Its records are tokens, which are looked up as whole numbers; others are refused."""
    records = torch.randint(0, 6, (20, 5), generator=torch.Generator().manual_seed(0)).numpy()
    keys: dict[str, Any] = {"method": method, "model": "test_adapters:words", "personal": "own", "store": tmp_path}
    keys |= {"rounds": 1, "workers": 1}
    labels = records[:, 0] % 2
    assert sordino.run(data=dict.fromkeys("ab", (records, labels)), **keys)["parameters"] == 2 * (3 + 4) + 2 * (4 + 1)
    with pytest.raises(UserError, match="takes tokens, whole numbers from 0 to 5"):
        sordino.run(data=dict.fromkeys("ab", (records + 1, labels)), **keys)


def words(shape: tuple[int, ...], classes: int) -> Adapted:
    return adapt(Words(), shape, classes, rank=2, trained_on="nothing")


class Words(nn.Module):
    """An encoder of text: the mean of its words, one layer behind."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(6, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).mean(1))


def test_batch_norm_without_statistics_is_refused() -> None:
    backbone = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(UserError, match="no running statistics"):
        adapt(backbone, (4,), 2, trained_on="nothing")
