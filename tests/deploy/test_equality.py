"""A deployment and a simulation with the same seeded noise give the same models, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, federation
from safetensors.torch import load_file
from text_models import songs

from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.status import status
from sordino.deploy.trial import add_accuracies, prepare_simulation
from sordino.experiment.run import start

PATIENT = Deadlines(hello=0.0, work=600.0, open=600.0)
CASES: dict[str, dict[str, Any]] = {
    "dp-fedavg": {},
    "feddpa": {},
    "fedglp-adp": {},
    "acdp-pfsd": {"public": "holdout:0.1"},
    "dp-fedavg, blended": {"method": "dp-fedavg", "personal": "blend", "data": "digits", "records": 300},
    "dp-fedavg, recalibrated": {"method": "dp-fedavg", "personal": "recalibrate", "data": "digits", "records": 300},
    "dp-fedavg-record": {"set": {"clipping": "quantile"}},
    "dp-fedavg-record, dealt": {"method": "dp-fedavg-record", "set": {"batches": "shuffled", "epochs": 2}},
    "dp-fedavg-record, dp-agr": {"method": "dp-fedavg-record", "set": {"clipping": "dp-agr", "clipping.debias": True}},
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
        check_equal(made)


SUMS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no counts": {"set": {"counts": 0.0, "served": "ema"}},
    "quantile": {"set": {"clipping": "quantile", "sampling": 0.5, "class_weight": "balanced"}},
    "normalised": {"set": {"clipping": "normalised", "server": "momentum", "served": "last"}},
    "from the server": {"protect_from": "server", "set": {"sampling": 0.4, "clipping": "quantile"}},
    "from the server, adam": {"protect_from": "server", "set": {"server": "adam", "class_weight": "balanced"}},
    "recalibrated": {"personal": "recalibrate", "set": {"sampling": 0.7}},
    "blended": {"personal": "blend", "set": {"server": "adam", "class_weight": "balanced"}},
    "recalibrated, from the server": {"personal": "recalibrate", "protect_from": "server", "set": {"counts": 0.0}},
    "adagrad": {"set": {"server": "adagrad", "sampling": 0.5}},
    "yogi": {"set": {"server": "yogi", "clipping": "quantile"}},
    "colluders": {"colluders": 1, "minimum_cohort": 4, "set": {"sampling": 0.5}},
    "a network": {"model": "mlp", "personal": "recalibrate", "set": {"clipping": "quantile"}},
    "not all of them": {"participation": 0.75, "minimum_cohort": 3, "set": {"sampling": 0.5}},
}
"""Options of sums of records' gradients, on small tables of four sites that differ in size."""
QUICK_SUMS = ("as it is", "quantile", "from the server", "recalibrated")
LATER_SUMS = [pytest.param(name, marks=pytest.mark.slow) for name in SUMS if name not in QUICK_SUMS]


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clinics with few ill patients."""
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(3)
    for size, name in zip((60, 35, 47, 28), ("east", "north", "south", "west"), strict=True):
        x = random.normal(size=(size, 4)).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5, 0.0] + random.normal(size=size) > 1.0).astype(np.int64)
        y[:3], y[-3:] = (0, 1, 1), (0, 1, 1)
        np.savez(folder / f"{name}.npz", x=x[9:], y=y[9:], x_test=x[:9], y_test=y[:9])
    return folder


@pytest.mark.parametrize("name", [*QUICK_SUMS, *LATER_SUMS])
def test_sums_of_records_equal_those_of_a_simulation(name: str, clinics: Path, tmp_path: Path) -> None:
    keys = {"data": str(clinics), "partition": None, "method": "dp-fedsgd", "model": "logistic", "delta": 1e-3}
    with federation(tmp_path, 4, **{**keys, "noise": "integers", **SUMS[name]}) as made:
        check_equal(made)


OUTCOMES: dict[str, dict[str, Any]] = {
    "numbers": {"personal": "recalibrate", "set": {"sampling": 0.7}},
    "numbers, huber": {"personal": "own", "loss": "huber", "set": {"clipping": "quantile"}},
    "numbers, blended": {"personal": "blend", "set": {"counts": 0.0}},
    "numbers of whole sites": {"method": "dp-fedavg", "personal": "recalibrate"},
    "times": {"personal": "recalibrate", "set": {"sampling": 0.7}},
    "times, blended": {"personal": "blend", "protect_from": "server"},
    "times of whole sites": {"method": "dp-fedavg"},
    "times, with one slope": {"model": "hazards", "evaluation_share": 0.2},
    "several numbers": {"personal": "recalibrate", "evaluation_share": 0.2},
    "several numbers, blended": {"personal": "blend", "method": "dp-fedavg"},
    "several labels": {"personal": "recalibrate", "set": {"sampling": 0.7}},
}
"""Options of sums of records' gradients where numbers or times to an event are predicted."""
QUICK_OUTCOMES = ("numbers", "times", "several numbers", "several labels")
LATER_OUTCOMES = [pytest.param(name, marks=pytest.mark.slow) for name in OUTCOMES if name not in QUICK_OUTCOMES]


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of four wards: days in hospital, some longer than the declared range, and whether somebody came back."""
    folder, random = tmp_path_factory.mktemp("wards"), np.random.default_rng(4)
    for size, name in zip((60, 35, 47, 28), ("east", "north", "south", "west"), strict=True):
        x = random.normal(size=(size, 2)).round(3)
        days = np.round(np.exp(2 + 0.5 * x[:, 0] + random.normal(0, 0.5, size)), 1)
        rows = np.column_stack([x, days, random.integers(0, 2, size)]).tolist()
        text = "".join(f"{a!r},{b!r},{days!r},{back:g}\n" for a, b, days, back in rows)
        (folder / f"{name}.csv").write_text("a,b,days,back\n" + text)
    return folder


@pytest.mark.parametrize("name", [*QUICK_OUTCOMES, *LATER_OUTCOMES])
def test_numbers_and_times_equal_those_of_a_simulation(name: str, wards: Path, tmp_path: Path) -> None:
    """The sites' declared range or cuts are the schema's, and what they keep holds intervals and curves, too."""
    number = {"kind": "number", "range": [-3, 3], "spread": 3}
    days = {"kind": "target", "range": [0, 20], "unit": "days"}
    long = {"kind": "label", "values": ["short", "long"], "bins": [8.0]}
    outcomes = {
        "numbers": {"days": days, "back": {"kind": "id"}},
        "times": {"days": {"kind": "time", "cuts": [4, 8, 16]}, "back": {"kind": "event"}},
        "several numbers": {"b": {"kind": "target", "range": [-3, 3]}, "days": days, "back": {"kind": "id"}},
        "several labels": {"days": long, "back": {"kind": "label", "values": ["0", "1"]}},
    }
    kind = next(one for one in outcomes if name.startswith(one))
    schema = {"columns": {"a": number, "b": number, **outcomes[kind]}}
    keys = {"data": str(wards), "table": schema, "partition": None, "method": "dp-fedsgd", "model": "logistic"}
    with federation(tmp_path, 4, **{**keys, "delta": 1e-3, "noise": "integers", **OUTCOMES[name]}) as made:
        check_equal(made)


SEQUENCES: dict[str, dict[str, Any]] = {
    "whole sites": {"method": "dp-fedavg", "model": "text_models:NextLSTM"},
    "sequences": {"method": "dp-fedavg-record", "model": "text_models:NextTransformer"},
    "persons": {"method": "dp-fedavg-record", "model": "text_models:NextLSTM", "person": "person"},
    "recalibrated": {"method": "dp-fedavg", "model": "text_models:NextTransformer", "personal": "recalibrate"},
    "blended": {"method": "dp-fedavg", "model": "text_models:NextLSTM", "personal": "blend"},
    "sums": {"method": "dp-fedsgd", "model": "text_models:NextLSTM", "set": {"sampling": 0.5, "counts": 0.0}},
}
"""Options where the next token of sequences is predicted."""
QUICK_SEQUENCES = ("whole sites", "sequences")
LATER_SEQUENCES = [pytest.param(name, marks=pytest.mark.slow) for name in SEQUENCES if name not in QUICK_SEQUENCES]


@pytest.fixture(scope="module")
def choirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences of five tokens at four choirs, two of each singer; tokens from 0 to 6 are declared, 6 never occurs."""
    folder = tmp_path_factory.mktemp("choirs")
    for seed, (size, name) in enumerate(zip((40, 24, 36, 30), ("east", "north", "south", "west"), strict=True)):
        tokens, singers = songs(size, 5, seed), np.array([f"{name} {place // 2}" for place in range(size)])
        whose = {"person": singers[8:], "person_test": singers[:8]}
        np.savez(folder / f"{name}.npz", tokens=tokens[8:], tokens_test=tokens[:8], **whose)
    return folder


@pytest.mark.parametrize("name", [*QUICK_SEQUENCES, *LATER_SEQUENCES])
def test_sequences_at_sites_equal_those_of_a_simulation(name: str, choirs: Path, tmp_path: Path) -> None:
    keys = {"data": str(choirs), "vocabulary": 7, "partition": None, "delta": 1e-3, "noise": "integers"}
    with federation(tmp_path, 4, **{**keys, **SEQUENCES[name]}) as made:
        assert (made.experiment.vocabulary, made.experiment.shape) == (7, (4,))
        check_equal(made)


def check_equal(made: Federation) -> None:
    """Compare a deployment with the simulation of its experiment: models, what sites keep, accuracies."""
    summary = made.run(deadlines=PATIENT)  # a failed attempt on a loaded machine would be another run
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
