"""The audit looks at whether records mix in the run's own network, also where the check has let it through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.auditing.record_canaries import mixing
from sordino.auditing.recorded_run import record
from sordino.auditing.suite import audit_prepared
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.per_record import Bookkeeper

SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": 3,
    "rounds": 1,
    "epsilon": 4.0,
    "records": 150,
    "method": "dp-fedavg-record",
    "set": {"epochs": 1, "batch": 20},
    "engine": "one-by-one",
}


class Apart(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, classes)

    def before(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.before(x.flatten(1)))


class Cumulated(Apart):
    def before(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Causal(Apart):
    def before(self, x: Tensor) -> Tensor:
        return (x @ x.t()).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -1e9).softmax(-1) @ x


class Branching(Apart):
    def before(self, x: Tensor) -> Tensor:
        return x / 255 if x.max() > 2 else x


class LastAlone(Apart):
    """The last record of a batch looks at the one before it."""

    def before(self, x: Tensor) -> Tensor:
        return torch.cat([x[:-1], x[-2:-1] + x[-1:]]) if len(x) > 1 and self.training else x


class Unproven(Bookkeeper):
    """Runs a network as it is written."""

    def prove(self, *looks: Any) -> None:
        self._networks = dict.fromkeys((True, False), self.learner.written)


def prepared(kind: type[Apart]) -> Any:
    return prepare(Experiment.make(SMALL | {"model": f"{__name__}:{kind.__name__}"}))


@pytest.mark.parametrize("kind", [Cumulated, Causal, Branching, LastAlone], ids=lambda kind: kind.__name__)
def test_a_network_that_slipped_through_is_refuted(kind: type[Apart], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"mixes the records|decides by the value"):
        prepared(kind)
    monkeypatch.setattr("sordino.learning.per_record.keeper_of", lambda learner, shape: Unproven(learner))
    monkeypatch.setattr("sordino.models.own.try_out", lambda *arguments: None)
    (found,) = mixing([record(prepared(kind))])
    assert found.refuted
    assert "the network mixes records" in found.sentence


def test_a_network_whose_records_are_apart_is_not() -> None:
    assert list(mixing([record(prepared(Apart))])) == []


def test_a_whole_audit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.learning.per_record.keeper_of", lambda learner, shape: Unproven(learner))
    monkeypatch.setattr("sordino.models.own.try_out", lambda *arguments: None)
    report = audit_prepared(prepared(Cumulated), tiers=(0,))
    assert report.refuted
    assert [finding.name for finding in report.findings if finding.refuted] == ["mixing"]
