"""Sums of gradients over few records are made in one stack, whatever the number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sordino.assembly import gate_of, simulate
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.federation.client import Question
from sordino.methods.dp_fedsgd import DPFedSGD
from sordino.simulator import choice, step_cost
from sordino.simulator.workers import Workers
from sordino.testing.case import Case

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS: dict[str, Any] = {
    **{"data": "digits", "clients": 6, "partition": "iid", "method": "dp-fedsgd", "model": "logistic"},
    **{"rounds": 3, "noise_multiplier": 2.0, "engine": "stacked"},
}

STEPS = ("local", "count")


def prepared(**keys: Any) -> Prepared:
    return prepare(Experiment.make(KEYS | keys))


def units_of(made: Prepared, folder: Path, step: str) -> list[list[int]]:
    with simulate(made, gate_of(made), folder) as transport:
        return transport.engine.units(range(len(made.data.clients)), step)


def test_work_that_is_worth_sharing_by_hand() -> None:
    cost = step_cost.SUMMED.stacked
    seconds = 1000 * (cost.product * 202 + cost.number * 100)
    edge = step_cost.WORTH_SHARING / seconds * 1000
    assert not step_cost.worth_sharing(202, 100, 0.999 * edge)
    assert step_cost.worth_sharing(202, 100, 1.001 * edge)


@pytest.mark.parametrize(("least", "stacks"), [(0.0, 2), (1.0, 1)])
def test_few_records_are_summed_in_one_stack(
    least: float, stacks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six clients of one size. Counts of labels are made of single records, one client at a time."""
    monkeypatch.setattr(step_cost, "WORTH_SHARING", least)
    made = prepared(store=tmp_path)
    found = units_of(made, tmp_path, "local")
    assert len(found) == stacks
    assert sorted(place for unit in found for place in unit) == list(range(6))
    assert len(units_of(made, tmp_path, "count")) == 6
    assert choice.stacks_of_a_round(made.method, made.learner, made.data, 6) == stacks
    other = prepared(method="dp-fedavg-record", store=tmp_path)
    assert choice.stacks_of_a_round(other.method, other.learner, other.data, 6) == 2


def test_units_are_made_anew_where_somebody_else_is_asked_or_has_taken_part(tmp_path: Path) -> None:
    made = prepared(method="dp-fedavg-record", store=tmp_path)
    with simulate(made, gate_of(made), tmp_path) as transport:
        engine = transport.engine
        everybody = engine.units(range(6), "local")
        assert engine.units(range(6), "local") is everybody
        assert engine.units([3, 5], "local") == [[0], [1]]
        engine.memory.participations[:3] += 1
        apart = engine.units(range(6), "local")
        assert sorted(map(sorted, apart)) == [[0, 1, 2], [3, 4, 5]]


def test_one_stack_needs_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "process_count", lambda self: self.workers or 4)
    alone, two = (prepared(store=tmp_path, engine="auto", workers=workers).choice for workers in (None, 2))
    assert (alone.engine, alone.workers) == ("stacked", 1)
    assert "One process: all clients of a round make their sums in one stack." in alone.reasons
    assert two.workers == 2


def test_another_process_is_not_asked_for_one_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = prepared(store=tmp_path), []
    ask = Workers._ask
    monkeypatch.setattr(Workers, "_ask", lambda self, *what: (asked.append(what[0]), ask(self, *what)))
    message = {"global": made.initial, "clip": torch.tensor(1.0), "weights": torch.ones(10), "groups": 10}
    with simulate(made, gate_of(made), tmp_path, workers=2) as transport:
        answers = [transport.ask(Question(0, 0, step, message, range(6)), False, lambda: None) for step in STEPS]
    assert asked == ["work"], "six clients count labels one by one"
    assert answers[0].values["gradient"].shape == (6, made.learner.layout.size)


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_any_number_of_processes_gives_the_same_bits(
    least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether sums are made in one stack or in two."""
    monkeypatch.setattr(step_cost, "WORTH_SHARING", least)
    case = Case(DPFedSGD(), tmp_path)
    one, two = (case.finished(case.prepared(engine="stacked", workers=n), tmp_path / str(n)) for n in (1, 2))
    assert one[0] == two[0]
    assert all(torch.equal(tensor, two[1][name]) for name, tensor in one[1].items())
