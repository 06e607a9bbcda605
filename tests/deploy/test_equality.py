"""A deployment and a simulation with the same seeded noise give the same models, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federations import federation
from safetensors.torch import load_file

from sordino.deploy.site.status import status
from sordino.deploy.trial import add_accuracies, prepare_simulation
from sordino.experiment.run import start

CASES: dict[str, dict[str, Any]] = {
    "dp-fedavg": {},
    "feddpa": {},
    "fedglp-adp": {},
    "acdp-pfsd": {"public": "holdout:0.1"},
    "dp-fedavg, blended": {"method": "dp-fedavg", "personal": "blend", "data": "digits", "records": 300},
    "dp-fedavg, recalibrated": {"method": "dp-fedavg", "personal": "recalibrate", "data": "digits", "records": 300},
    "dp-fedavg-record": {"set": {"clipping": "quantile"}},
    "dp-fedsgd": {"set": {"sampling": 0.5}},
    "dp-fedsgd, quantile": {"method": "dp-fedsgd", "set": {"clipping": "quantile", "class_weight": "balanced"}},
    "dp-fedsgd, normalised": {"method": "dp-fedsgd", "model": "mlp", "set": {"clipping": "normalised", "counts": 0}},
    "dp-fedsgd, budgets": {"method": "dp-fedsgd", "set": {"budgets": "4:0.5,16:0.5", "server": "adam"}},
    "dp-fedsgd, from the server": {"method": "dp-fedsgd", "protect_from": "server"},
    "dp-fedsgd, blended": {"method": "dp-fedsgd", "personal": "blend", "records": 300},
    "dp-fedsgd, recalibrated": {"method": "dp-fedsgd", "personal": "recalibrate", "records": 300},
    "pac-dp": {"set": {"budgets": "4:0.5,16:0.5"}},
    "adadp-cfl": {"set": {"clipping.effect": 1e9, "cluster_share": 0.3}},
}


QUICK = ("dp-fedavg", "dp-fedavg, recalibrated", "dp-fedavg-record", "dp-fedsgd")
LATER = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in QUICK]


@pytest.mark.parametrize("method", [*QUICK, *LATER])
def test_models_equal_those_of_a_simulation(method: str, tmp_path: Path) -> None:
    with federation(tmp_path, 10, **{"method": method, "noise": "integers", **CASES[method]}) as made:
        summary = made.run()
        expected = start(prepare_simulation(made.experiment, made.original), made.store)
    assert summary.rounds_done == expected.rounds_done == 2
    ours, theirs = (load_file(made.store.path(one.run) / "models.safetensors") for one in (summary, expected))
    for name in {"global", "averaged"} & set(theirs):
        assert torch.equal(ours[name], theirs[name])
    kept = [load_file(folder / status(folder)["runs"][0]["model"]) for folder in made.folders]
    for name in {"personal", "blend", "weights", "powers", "offsets"} & set(theirs):
        order = theirs["clients" if name == "personal" else "blend_clients"].tolist()
        assert [len(one[name]) for one in kept].count(1) == len(order)
        assert torch.equal(
            torch.cat([one[name][:0] for one in kept] + [kept[one][name] for one in order]), theirs[name]
        )
    assert add_accuracies(summary, made.folders).accuracy == pytest.approx(expected.accuracy)
    assert summary.epsilon == expected.epsilon == dict.fromkeys(("outsider", "peer", "server"))
