"""What an experiment is, and which mistakes in it are found before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sordino.errors import UserError
from sordino.experiment.config import Experiment, dotted, setting
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.feddpa import FedDPA
from sordino.parts.thresholds import Quantile


def test_without_keys_it_is_the_built_in_example() -> None:
    experiment = Experiment.make({})
    assert (experiment.data, experiment.method, experiment.variant) == ("digits", "dp-fedavg", "sound")
    assert experiment.build_method() == DPFedAvg(clipping=Quantile())


def test_later_sources_win_and_settings_add_up() -> None:
    experiment = Experiment.make(
        {"method": "feddpa", "rounds": 3, "set": {"tau": 0.1, "method": {"epochs": 2}}},
        {"rounds": 4, "set": {"tau": 0.2}},
        {"rounds": 4, "set": {"tau": 0.2}},
    )
    assert experiment.rounds == 4
    assert experiment.build_method() == FedDPA(tau=0.2, epochs=2)


def test_none_means_not_given() -> None:
    assert Experiment.make({"rounds": 3}, {"rounds": None}).rounds == 3


@pytest.mark.parametrize(("first", "second"), [("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")])
def test_a_later_budget_replaces_an_earlier_one(first: str, second: str) -> None:
    experiment = Experiment.make({first: 2}, {second: 3})
    assert (getattr(experiment, first), getattr(experiment, second)) == (None, 3)
    with pytest.raises(UserError, match="not both"):
        Experiment.make({first: 2, second: 3})


def test_dashes_and_underscores_are_the_same() -> None:
    assert Experiment.make({"noise-multiplier": 2}) == Experiment.make({"noise_multiplier": 2})


def test_keys_of_the_experiment_may_come_through_set() -> None:
    experiment = Experiment.make({"set": {"evaluate_every": 5, "tau": 0.1, "method": "feddpa"}})
    assert (experiment.evaluate_every, experiment.method, experiment.personal) == (5, "feddpa", "own")
    assert experiment.set == {"tau": 0.1}


def test_settings_of_a_method_may_carry_its_name() -> None:
    settings = {"feddpa.tau": 0.1, "fedavg.rate": 0.5, "method.epochs": 2}
    assert Experiment.make({"method": "feddpa", "set": settings}).build_method() == FedDPA(tau=0.1, epochs=2)


def test_settings_of_other_methods_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"hyper-parameter of fedavg 'tau'"):
        Experiment.make({"set": {"fedavg.tau": 0.1}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tau=0.3", ("tau", 0.3)),
        ("epochs=2", ("epochs", 2)),
        ("model.hidden=[3, 4]", ("model.hidden", [3, 4])),
        ("flag=true", ("flag", True)),
        ("clipping=quantile", ("clipping", "quantile")),
        ('name="a=b"', ("name", "a=b")),
        ("name=a=b", ("name", "a=b")),
    ],
)
def test_settings_of_the_command_line(text: str, expected: tuple[str, Any]) -> None:
    assert setting(text) == expected


def test_tables_become_dotted_keys() -> None:
    assert dotted({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == {"a": 1, "b.c": 2, "b.d.e": 3}


def test_an_experiment_survives_its_own_dump() -> None:
    """Resuming reads back what was stored."""
    experiment = Experiment.make({"epsilon": 2, "shape": [1, 8, 8], "set": {"clip": 0.1, "model.hidden": [5]}})
    assert Experiment.make(experiment.model_dump(mode="json")) == experiment


def test_a_file_is_read_with_overrides(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("method = 'feddpa'\nclients = 5\nprotect-from = 'server'\n[set]\nfeddpa.tau = 0.1\n")
    experiment = Experiment.read(file, {"clients": 6})
    assert (experiment.clients, experiment.protect_from) == (6, "server")
    assert experiment.build_method() == FedDPA(tau=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clipping": "quantile", "clipping.quantile": 1.0}, "clipping.quantile cannot be 1.0"),
        ({"clipping": "quantile", "clipping.share": 0}, "clipping.share cannot be 0"),
        ({"clipping": "quantil"}, "There is no clipping 'quantil'; did you mean 'quantile'?"),
        ({"clipping": 3}, "clipping cannot be 3: write one of fixed, quantile, normalised, median, layer-wise, ppo"),
        ({"momentum": 1}, "momentum cannot be 1"),
        ({"lambda1": -0.1}, "lambda1 cannot be -0.1"),
        ({"rate": float("inf")}, "rate cannot be inf"),
        ({"epochs": 1.5}, "epochs cannot be 1.5"),
        ({"schedule": "random"}, "schedule cannot be 'random'"),
        ({"variant": "paper"}, None),
    ],
)
def test_hyper_parameters_out_of_range(settings: dict[str, Any], message: str | None) -> None:
    if message is None:  # a key of the experiment, not a hyper-parameter
        assert Experiment.make({"set": settings}).variant == "paper"
        return
    with pytest.raises(UserError, match=message):
        Experiment.make({"method": "feddpa", "set": settings})


def test_contenders_of_a_comparison_may_differ_in_what_clients_predict_with() -> None:
    experiment = Experiment.make({"set": {"tau": 0.1}}, methods=["feddpa"])
    assert experiment.for_method("dp-fedavg", {"personal": "blend"}).personal == "blend"
    assert experiment.for_method("dp-fedavg", {}).personal == "own"


def test_a_comparison_has_the_defaults_of_a_run_for_the_method_of_tables() -> None:
    named = ["local", "dp-fedsgd", "dp-fedsgd[rounds=5]"]
    table: tuple[Any, ...] = ((4,), 4, 100.0)
    experiment = Experiment.make({}, methods=["local", "dp-fedsgd"])
    default = "dp-fedsgd[model=logistic,rounds=60,personal=recalibrate]"
    assert experiment.with_defaults(named, *table) == ["local", default, "dp-fedsgd[rounds=5]"]
    assert experiment.with_defaults(named, (1, 28, 28), 4, 100.0) == named, "these are for tables"
    given = Experiment.make({"rounds": 7, "model": "mlp"}, methods=["local", "dp-fedsgd"])
    assert given.with_defaults(named, *table)[1] == "dp-fedsgd[personal=recalibrate]"


@pytest.mark.parametrize(
    ("given", "within"),
    [
        ({"personal": "own"}, {"personal": "blend"}),
        ({"rounds": 3}, {"rounds": 5}),
        ({"epsilon": 3.0}, {"epsilon": 4}),
        ({"data-dir": Path("here")}, {"data_dir": "there"}),
        ({"schema": Path("a.toml")}, {"schema": "b.toml"}),
    ],
)
def test_a_key_that_is_given_twice_must_be_the_same(given: dict[str, Any], within: dict[str, Any]) -> None:
    """Within one source; a later source may say otherwise."""
    ((key, value),), (other,) = given.items(), within.values()
    shown = str(value) if isinstance(value, Path) else value
    sentence = f"{key.replace('-', '_')} is given twice, as {shown!r} and by `set` as {other!r}: leave one of them out."
    with pytest.raises(UserError, match=re.escape(sentence)):
        Experiment.make({**given, "set": within})
    if key != "schema":
        again = Experiment.make({**given, "set": {key: shown}})
        assert again == Experiment.make(given)
        assert Experiment.make(given, {"set": within}) == Experiment.make(within)
