"""Text: tokens as inputs of transformers and recurrent networks, and next-token prediction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_models import sentences, songs
from torch.nn import functional

import sordino
from sordino import UserError
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.rules import RefusedError, read_rules
from sordino.deploy.site.site import Site
from sordino.deploy.terms import terms_of
from sordino.experiment.config import Experiment
from sordino.tasks import NextToken, read_task

TASK = NextToken(5, 3)
OUTPUTS = torch.randn(7, 15, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(0, 5, (7, 3), generator=torch.Generator().manual_seed(1))
KEYS: dict[str, Any] = {"workers": 1, "labels": range(6), "personal": "own", "epsilon": 8}


def reference() -> torch.Tensor:
    """Cross-entropy of each record by torch's own function: the mean over positions."""
    losses = functional.cross_entropy(OUTPUTS.reshape(21, 5), TARGETS.reshape(21), reduction="none")
    return losses.reshape(7, 3).mean(dim=1)


def test_losses_are_those_of_torch() -> None:
    assert torch.allclose(TASK.losses(OUTPUTS, TARGETS), reference(), atol=1e-6)
    stacked = TASK.stacked_losses(OUTPUTS.expand(2, 7, 15), TARGETS.expand(2, 7, 3))
    assert torch.allclose(stacked, reference().expand(2, 7), atol=1e-6)
    assert float(TASK.summed_loss(OUTPUTS, TARGETS)) == pytest.approx(float(reference().sum()), rel=1e-6)


def test_slopes_are_gradients() -> None:
    leaf = OUTPUTS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(TASK.losses(leaf, TARGETS).sum(), leaf)
    assert torch.allclose(TASK.slopes(OUTPUTS.unsqueeze(0), TARGETS.unsqueeze(0))[0], gradient, atol=1e-6)


def test_metrics_by_hand() -> None:
    """Two records at one client and one at another: 2 of 6 and 3 of 3 tokens right, at known probabilities."""
    task = NextToken(2, 3)
    outputs = torch.log(torch.tensor([[0.8, 0.2] * 3, [0.4, 0.6] * 3, [0.5, 0.5] * 3])) + 3
    targets = torch.tensor([[0, 0, 1], [0, 0, 0], [0, 0, 0]])
    sums = task.sums(outputs, targets, np.array([2, 1]), [])
    found = task.figures(np.concatenate([sums, task.no_sums()[np.newaxis]]))
    lost = -(2 * math.log(0.8) + math.log(0.2) + 3 * math.log(0.4)) / 6
    assert found[0] == pytest.approx([2 / 6, math.exp(lost)])
    assert found[1] == pytest.approx([1, 2])
    assert np.isnan(found[2]).all()


def test_mixtures_of_sequences() -> None:
    """Sharpened probabilities sum to one at each position; without powers and offsets nothing changes."""
    said = TASK.log_probabilities(OUTPUTS)
    assert torch.allclose(TASK.sharpen(said, 1.0, torch.zeros(15)), said, atol=1e-6)
    assert torch.allclose(TASK.sharpen(said, 2.0, torch.randn(15)).exp().reshape(7, 3, 5).sum(dim=2), torch.ones(7, 3))
    assert torch.allclose(TASK.likelihoods(said, TARGETS), -3 * reference(), atol=1e-5)
    without = TASK.frequencies_without_each(TARGETS)
    for place in range(7):
        others = torch.cat([TARGETS[:place], TARGETS[place + 1 :]])
        assert torch.allclose(without[place], TASK.frequencies(others), atol=1e-6)
    power, offsets = TASK.recalibrate(said.double(), said.reshape(7, 3, 5).argmax(dim=2))
    assert power > 1, "a model that is always right may be surer"
    assert offsets.shape == (15,)


def test_the_task_is_written_and_read() -> None:
    assert read_task(TASK.document()) == TASK
    assert TASK.admits(NextToken(5, 3))
    assert not TASK.admits(NextToken(5, 4))
    assert TASK.tell(TASK.predict(OUTPUTS).numpy()) == [str(one) for one in OUTPUTS[:, 10:].argmax(dim=1).tolist()]
    assert len(TASK.columns) == TASK.width


@pytest.mark.parametrize(
    ("method", "model", "keys"),
    [
        pytest.param(
            *("dp-fedavg-record", "NextTransformer", {"set": {"epochs": 2, "rate": 0.5, "batch": 32}}),
            marks=pytest.mark.slow,
        ),
        ("dp-fedavg", "NextLSTM", {"privacy": "none", "epsilon": None, "set": {"rate": 0.05, "optimizer": "adam"}}),
    ],
)
def test_the_next_token_is_learned(method: str, model: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """Nine of ten words follow their predecessor; of six words chance finds one in six."""
    data = {name: songs(120, 9, seed) for seed, name in enumerate(("a", "b", "c"))}
    model = f"text_models:{model}"
    found = sordino.run(data=data, method=method, model=model, rounds=6, store=tmp_path, **KEYS | keys)
    assert found["accuracy"]["personal"] > 0.4
    assert found["metrics"]["perplexity"]["mean"] < 5
    assert not any("largest token" in reason for reason in found["not_covered"])
    models = sordino.load_models(found["run"], tmp_path)
    assert models.about.meaning.task == NextToken(6, 8)
    with torch.no_grad():
        said = models.personal["a"](torch.from_numpy(data["a"][:5, :-1]).float())
    assert said.shape == (5, 48)


def test_sequences_as_text_by_hand() -> None:
    """How sites read them: whole rows of declared tokens, or nothing."""
    task = NextToken(5, 3)
    assert task.parse(["0 4 2", "0 4", "0 4 5", "0 4 -1", "0 4 x"]).tolist() == [[0, 4, 2], *([[-1, -1, -1]] * 4)]
    assert task.parse(task.text(np.array([[1, 2, 3]]))).tolist() == [[1, 2, 3]]
    arrays = task.arrays(np.array([[0.0, 1.0, 2.0]], dtype=np.float32), np.array([[1, 2, 3]]), "_test")
    assert {name: rows.tolist() for name, rows in arrays.items()} == {"tokens_test": [[0, 1, 2, 3]]}


DECLARED: dict[str, Any] = {"clients": 3, "shape": [4], "vocabulary": 6, "model": "text_models:NextLSTM", "epsilon": 8}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shape": None}, "the experiment must declare the shape of a record"),
        ({"shape": [2, 2]}, "`shape` must declare the length of a sequence"),
        ({"labels": ["a", "b"]}, "leave out either it or `labels`"),
        ({"task": "regression"}, "leave out either it or `task`"),
    ],
)
def test_declared_sequences(changes: dict[str, Any], sentence: str) -> None:
    keys = DECLARED | {"method": "dp-fedavg"}
    assert terms_of(Experiment.make(keys)).learner.task == NextToken(6, 4)
    with pytest.raises(UserError, match=sentence):
        terms_of(Experiment.make(keys | changes))


def test_a_site_with_an_undeclared_token_takes_no_part(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    np.savez(folder / "north.npz", tokens=songs(20, 5, 0) + 1)
    Site.create(folder, "north", Path("north.npz"), max_epsilon=9.0, max_delta=1e-2, methods=("dp-fedavg",))
    rules = read_rules(folder).rules
    terms = terms_of(Experiment.make(DECLARED | {"method": "dp-fedavg"}))
    with pytest.raises(RefusedError, match="no sequence of declared tokens"):
        encode_records(read_records(folder, rules), terms, rules, b"secret")


def test_tokens_are_declared_for_sequences_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no array 'tokens' of sequences"):
        sordino.run(data={"a": (np.zeros((9, 2)), np.arange(9) % 2)}, vocabulary=3, method="local", store=tmp_path)


@pytest.mark.parametrize("model", ["NextLSTM", pytest.param("NextTransformer", marks=pytest.mark.slow)])
def test_sequences_are_protected_one_by_one(model: str, tmp_path: Path) -> None:
    """A run with private gradients of whole sequences pays for each as for one record."""
    data = {name: songs(12, 4, seed) for seed, name in enumerate(("a", "b"))}
    keys = KEYS | {"model": f"text_models:{model}", "rounds": 1, "set": {"batch": 4}}
    found = sordino.run(data=data, method="dp-fedavg-record", store=tmp_path, **keys)
    assert found["unit"] == "record"
    assert found["epsilon"]["server"] <= 8 * (1 + 1e-6)


def test_stacked_sequences_are_those_of_single_clients(tmp_path: Path) -> None:
    data = {name: songs(20 + 7 * seed, 5, seed) for seed, name in enumerate(("a", "b", "c"))}
    keys = KEYS | {"method": "dp-fedavg", "model": "text_models:NextTransformer", "rounds": 2, "privacy": "none"}
    del keys["epsilon"]
    figures = [
        sordino.run(data=data, engine=engine, store=tmp_path / engine, **keys)["metrics"]["perplexity"]["mean"]
        for engine in ("stacked", "one-by-one")
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)
    with pytest.raises(UserError, match="cannot be stacked, because torch cannot stack recurrent layers"):
        sordino.run(data=data, engine="stacked", store=tmp_path, **keys | {"model": "text_models:NextLSTM"})


@pytest.mark.slow
def test_a_transformer_reads_text_where_records_are_protected(tmp_path: Path) -> None:
    """Two topics, of which chance finds every other: above 0.65 of 120 test records lies chance with a probability
    below one in a thousand."""
    data = {name: sentences(200, 12, seed) for seed, name in enumerate(("a", "b", "c"))}
    found = sordino.run(
        data=data,
        model="text_models:Transformer",
        method="dp-fedsgd",
        rounds=40,
        store=tmp_path,
        set={"sampling": 0.3},
        **KEYS | {"labels": [0, 1]},
    )
    assert found["accuracy"]["personal"] > 0.65
    assert found["epsilon"]["outsider"] == pytest.approx(8, rel=0.01)
    assert found["unit"] == "record"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"a": songs(5, 4, 0), "b": songs(5, 6, 0)}, "cut or pad them to one length"),
        ({"a": songs(5, 4, 0) - 1, "b": songs(5, 4, 0)}, "whole numbers from 0"),
        ({"a": songs(5, 4, 0) + 3, "b": songs(5, 4, 0)}, "those from 0 to 5 are declared"),
        ({"a": songs(5, 4, 0), "b": (songs(5, 4, 0), [0, 1, 0, 1, 0])}, "as the others have"),
    ],
)
def test_wrong_sequences_are_refused(data: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        sordino.run(data=data, model="text_models:NextLSTM", method="local", store=tmp_path, **KEYS)


def test_undeclared_tokens_are_told(tmp_path: Path) -> None:
    keys = {key: value for key, value in KEYS.items() if key not in ("labels", "epsilon")}
    data = {"a": songs(10, 4, 0), "b": songs(10, 4, 1)}
    model = "text_models:NextLSTM"
    found = sordino.run(data=data, model=model, method="dp-fedavg", rounds=1, store=tmp_path, **keys)
    assert any("largest token" in reason for reason in found["not_covered"])
