"""The loss of clients' models is noted down each round, whichever way they are run."""

import pytest

import sordino
from sordino.store.store import Store


def losses(tmp_path, engine):
    keys = {"clients": 6, "rounds": 3, "model": "logistic", "method": "fedavg", "workers": 1}
    summary = sordino.run(engine=engine, store=tmp_path / engine, partition="dirichlet:0.3", **keys)
    store = Store(tmp_path / engine, must_exist=True)
    curve = store.curve(summary["run"])
    store.close()
    return [point["loss"] for point in curve], summary["metrics"]["log_loss"]["mean"]


def test_losses_are_those_of_the_personal_models(tmp_path):
    stacked, at_the_end = losses(tmp_path, "stacked")
    single, also = losses(tmp_path, "one-by-one")
    assert len(stacked) == 3
    assert stacked == pytest.approx(single, rel=1e-3)
    assert stacked[-1] == pytest.approx(at_the_end, rel=1e-4)  # worked out by other code, from probabilities
    assert single[-1] == pytest.approx(also, rel=1e-4)
    assert len(set(stacked)) == 3
