"""Loops over batches that methods write themselves: padding of stacked clients must not count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.learning.network import Records
from sordino.method import Method, Result
from sordino.privacy.release import Bare, sends
from sordino.trained.models import load_models

KEYS: dict[str, Any] = {
    **{
        "clients": 5,
        "partition": "quantity:1,min=6",
        "rounds": 1,
        "workers": 1,
        "model": "logistic",
        "method": "fedavg",
    },
    **{"records": 200, "set": {"epochs": 1}},
}


@dataclass(frozen=True)
class ByHand(Method):
    """Trains with a gradient that the step takes itself."""

    title: ClassVar[str] = "a loop by hand"
    paper: ClassVar[str] = "none"
    batch: int = 8

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            server.model = server.model + fed.ask(fed.sample(), self.local, {"global": server.model}).mean("update")

    @sends(lambda self: {"update": Bare("a test")})
    def local(self, message: Any, me: Any, data: Records) -> Result:
        descent, model = self.descent(data), message["global"]
        for batch in descent.batches():
            model = descent.step(model, self.gradient(model, batch, data), batch)
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])

    def gradient(self, model: Any, batch: Any, data: Records) -> Any:
        def loss(model: Any) -> Any:
            losses = data.losses(data.learner.logits(model, batch.x), batch.y)
            if batch.weight is None:
                return losses.mean()
            return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

        return torch.func.grad(loss)(model)


class Forgetful(ByHand):
    """Takes the mean over padding, too."""

    def gradient(self, model: Any, batch: Any, data: Records) -> Any:
        return torch.func.grad(lambda model: data.losses(data.learner.logits(model, batch.x), batch.y).mean())(model)


class Handed(ByHand):
    """Leaves the gradient to the records."""

    def gradient(self, model: Any, batch: Any, data: Records) -> Any:
        return data.gradient(model, batch)


def trained(method: Method, engine: str, store: Path) -> Any:
    experiment = Experiment.make(KEYS | {"engine": engine, "store": store, "privacy": "none"})
    summary = start(prepare(experiment, method=method))
    models = load_models(summary.run, store)
    return torch.cat([part.flatten() for name in models.personal for part in models.personal[name].parameters()])


@pytest.mark.parametrize("kind", [ByHand, Handed])
def test_a_loop_by_hand_agrees_with_single_clients(kind: type[ByHand], tmp_path: Path) -> None:
    stacked, alone = trained(kind(), "stacked", tmp_path / "s"), trained(kind(), "one-by-one", tmp_path / "a")
    assert torch.allclose(stacked, alone, atol=1e-5)


def test_a_loop_that_forgets_padding_fails(tmp_path: Path) -> None:
    """Where there is none, there is nothing to forget."""
    with pytest.raises(UserError, match=r"never looks at `batch.weight`"):
        trained(Forgetful(), "stacked", tmp_path / "s")
    assert torch.allclose(
        trained(Forgetful(), "one-by-one", tmp_path / "a"), trained(ByHand(), "one-by-one", tmp_path / "b"), atol=1e-6
    )
