"""FedDPA: masks, merging and constraints against hand-worked numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.network import Learner, Records
from sordino.learning.parameters import Layout, flatten
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.feddpa import FedDPA
from sordino.parts.masks import scale_to_unit
from sordino.privacy.budget.client_level_plan import plan
from sordino.privacy.views import VIEWS
from sordino.tasks import Classification
from sordino.testing.case import CLIENTS, ROUNDS, Case, OneRound
from sordino.util.formatting import round_up

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = Layout(("a", "b"), ((2, 2), (2,)))


def client(count: int = 12) -> tuple[Records, torch.Tensor]:
    torch.manual_seed(0)
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Classification.numbered(3))
    x = torch.randn(count, 4)
    return Records(x, (x.sum(dim=1) > 0).long(), learner, seed=1), flatten(learner.module)


def first_time(model: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"model": model, "participations": torch.tensor(0.0)}


def test_fisher_values_are_scaled_in_each_tensor() -> None:
    information = torch.tensor([1.0, 3.0, 2.0, 5.0, 7.0, 9.0])
    assert scale_to_unit(information, LAYOUT).tolist() == [0.0, 0.5, 0.25, 1.0, 0.0, 1.0]


def test_a_constant_tensor_is_shared_and_not_nan() -> None:
    information = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.0, 4.0])
    assert scale_to_unit(information, LAYOUT)[4:].tolist() == [0.0, 0.0]


def test_informative_parameters_are_kept_and_the_rest_received() -> None:
    data, model = client()
    own, received = model + 1, model - 1
    me = {"model": own, "participations": torch.tensor(3.0)}
    result = FedDPA(tau=0.4, epochs=1).local({"global": received, "clip": 0.5}, me, data)
    personal = scale_to_unit(data.fisher(own), data.layout) >= 0.4
    assert 0 < personal.sum() < len(personal)
    assert torch.equal(result.start, torch.where(personal, own, received))


def test_a_newcomer_starts_from_what_it_received() -> None:
    data, model = client()
    result = FedDPA().local({"global": model + 2, "clip": 0.5}, first_time(model), data)
    assert torch.equal(result.start, model + 2)


@pytest.mark.parametrize(("tau", "kept"), [(0.0, True), (1.1, False)])
def test_ends_of_the_threshold(tau: float, kept: bool) -> None:
    data, model = client()
    me = {"model": model + 1, "participations": torch.tensor(1.0)}
    result = FedDPA(tau=tau).local({"global": model, "clip": 0.5}, me, data)
    assert torch.equal(result.start, model + 1 if kept else model)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_masks_and_constraints_it_is_dp_fedavg(optimizer: str) -> None:
    """One batch holds all records, so the order in which they come does not matter."""
    data, model = client()
    message = {"global": model, "clip": 0.5}
    keys = {"epochs": 3, "batch": 50, "optimizer": optimizer}
    ours = FedDPA(tau=2.0, lambda1=0.0, lambda2=0.0, **keys).local(message, first_time(model), data)
    plain = DPFedAvg(**keys).local(message, first_time(model), data)
    assert torch.allclose(ours.send["update"], plain.send["update"], atol=1e-6)


@pytest.mark.parametrize("constraints", ["paper", "code"])
def test_penalties_are_the_gradients_of_the_papers_terms(constraints: str) -> None:
    torch.manual_seed(1)
    start, received, model = torch.randn(6), torch.randn(6), torch.randn(6, dtype=torch.float64)
    personal = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    method = FedDPA(lambda1=0.3, lambda2=0.7, constraints=constraints)
    hold, draw = method._penalties(start, received, personal, 1 - personal, 0.5, LAYOUT)

    def length(difference: torch.Tensor) -> torch.Tensor:
        if constraints == "paper":
            return difference.norm()
        return sum(piece.norm() for piece in LAYOUT.tensors(difference))

    def first(w: torch.Tensor) -> torch.Tensor:  # (lambda1 / 2) |u - u0|, Eq. 9
        difference = (w - start) * personal if constraints == "paper" else w - received
        return 0.3 / 2 * length(difference)

    def second(w: torch.Tensor) -> torch.Tensor:  # (lambda2 / 2) | |v - v0| - C |, Eq. 11
        difference = (w - start) * (1 - personal) if constraints == "paper" else w - received
        return 0.7 / 2 * (length(difference) - 0.5).abs()

    for penalty, value in ((hold, first), (draw, second)):
        at = model.clone().requires_grad_()
        value(at).backward()
        assert torch.allclose(penalty(model), at.grad, atol=1e-9)


def test_at_the_start_penalties_pull_nowhere() -> None:
    start = torch.randn(6)
    hold, draw = FedDPA()._penalties(start, start, torch.ones(6), torch.zeros(6), 0.5, LAYOUT)
    assert torch.equal(hold(start), torch.zeros(6))
    assert torch.equal(draw(start), torch.zeros(6))


def test_the_second_constraint_draws_the_update_to_the_threshold() -> None:
    data, model = client(60)
    message = {"global": model, "clip": 6.0}
    keys = {"epochs": 20, "rate": 0.2, "tau": 2.0, "lambda1": 0.0}
    free = FedDPA(lambda2=0.0, **keys).local(message, first_time(model), data).send["update"].norm()
    drawn = FedDPA(lambda2=2.0, **keys).local(message, first_time(model), data).send["update"].norm()
    assert abs(drawn - 6.0) < abs(free - 6.0) / 2


def test_phases() -> None:
    assert FedDPA(epochs=2)._phases() == ["personal", "shared"] * 2
    assert FedDPA(epochs=2, schedule="two-phase")._phases() == ["personal", "personal", "shared", "shared"]


def test_the_released_code_measures_the_update_from_the_global_model() -> None:
    _, model = client()
    me = {"model": model + 1, "participations": torch.tensor(3.0)}
    message = {"global": model - 1, "clip": 0.5}
    ours, code = (FedDPA(tau=0.4, epochs=1, base=base).local(message, me, client()[0]) for base in ("start", "global"))
    assert torch.equal(ours.keep["model"], code.keep["model"])
    assert torch.equal(ours.send["update"], ours.keep["model"] - ours.start)
    assert torch.equal(code.send["update"], code.keep["model"] - (model - 1))
    assert not torch.allclose(ours.send["update"], code.send["update"]), "personal parameters are in it"


def test_the_released_codes_weights_leave_bare(tmp_path: Path) -> None:
    case = Case(FedDPA(weights="records"), tmp_path)
    prepared = case.prepared()
    summary, _ = case.finished(prepared, tmp_path)
    assert summary["epsilon"] == dict.fromkeys(VIEWS)
    assert any(sentence.startswith("records: ") for sentence in summary["not_covered"])
    (told,) = [note for note in summary["notes"] if note.startswith("If what leaves bare were public")]
    server = plan(CLIENTS, ROUNDS, prepared.budget.delta, noise_multiplier=2.0).epsilon["server"]
    worth = ", ".join(f"{round_up(server)} for the {view}" for view in VIEWS)
    assert told.endswith(f"would be {worth}."), "what the noise is worth to whoever reads single messages"
    assert case.prepared().method.is_private()


def test_weights_by_hand() -> None:
    class Replied:
        """Two clients, of one record and of three."""

        def mean(self, release: str) -> torch.Tensor:
            return self.rows(release).mean(dim=0)

        def rows(self, release: str) -> torch.Tensor:
            return torch.tensor([[1.0], [3.0]] if release == "records" else [[4.0, 0.0], [0.0, 8.0]])

    assert FedDPA()._average(Replied()).tolist() == [2.0, 4.0]
    assert FedDPA(weights="records")._average(Replied()).tolist() == [1.0, 6.0]


def test_twice_the_passes_are_told(tmp_path: Path) -> None:
    notes = Case(FedDPA(), tmp_path).prepared().notes
    assert any("2 times a round" in note and "dp-fedavg[epochs=2]" in note for note in notes)
    data, model = client()
    FedDPA(epochs=3).local({"global": model, "clip": 0.5}, first_time(model), data)
    assert data._epochs == 6


@pytest.mark.parametrize(("tau", "personal"), [(0.4, 0.08), (0.8, 0.017)])
def test_how_much_of_the_examples_small_network_is_personal(tau: float, personal: float, tmp_path: Path) -> None:
    """What experiments/demo.toml and the README say of the default; the paper's networks have 0.5 to 1.5 %."""
    given = tomllib.loads((ROOT / "experiments" / "demo.toml").read_text("utf-8"))
    ready = prepare(Experiment.make(given | {"method": "feddpa", "store": tmp_path, "set": {"tau": tau}}))
    own = OneRound(ready, tmp_path / "rounds", rounds=10).memory["model"]
    records = [Records(client.x, client.y, ready.learner, seed=0) for client in ready.data.clients]
    masks = [scale_to_unit(held.fisher(model), held.layout) >= tau for held, model in zip(records, own, strict=True)]
    assert torch.stack(masks).double().mean().item() == pytest.approx(personal, rel=0.25)
