"""Hyper-parameters by name: those with settings of their own, and those that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sordino.errors import UserError
from sordino.experiment.config import Experiment, setting
from sordino.experiment.hyperparameters import Address, address
from sordino.parts import record_thresholds
from sordino.parts.ppo import LearnedThreshold
from sordino.parts.thresholds import Fixed, LayerWise, Median, Quantile
from sordino.study.sweep import contender


def clipping(method: str = "feddpa", **settings: Any) -> Any:
    """The rule that an experiment with these settings gets; `__` stands for a dot."""
    written = {key.replace("__", "."): value for key, value in settings.items()}
    return Experiment.make({"method": method, "set": written}).build_method().clipping  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("tau", Address("", "tau", None)),
        ("method.tau", Address("", "tau", None)),
        ("dp-fedavg.rate", Address("dp-fedavg", "rate", None)),
        ("clipping.rate", Address("", "clipping", "rate")),
        ("method.clipping.rate", Address("", "clipping", "rate")),
        ("feddpa.clipping.rate", Address("feddpa", "clipping", "rate")),
        ("sordino.methods.feddpa:FedDPA.tau", Address("sordino.methods.feddpa:FedDPA", "tau", None)),
        ("sordino.methods.feddpa:FedDPA.clipping.rate", Address("sordino.methods.feddpa:FedDPA", "clipping", "rate")),
        ("model.hidden", None),
        ("model.clipping.rate", None),
    ],
)
def test_what_a_key_means(key: str, expected: Address | None) -> None:
    assert address(key) == expected


def test_a_rule_and_its_settings() -> None:
    assert clipping() == Fixed()
    assert clipping(clipping="quantile") == Quantile()
    assert clipping(clipping="quantile", clipping__quantile=0.7) == Quantile(quantile=0.7)
    assert clipping(clipping="quantile", method__clipping__rate=0.3) == Quantile(rate=0.3)
    assert clipping(clipping="layer-wise", clipping__gamma=0.4) == LayerWise(gamma=0.4)
    assert clipping(clipping="median") == Median()
    assert clipping("adadp-cfl", clipping="fixed") == record_thresholds.Fixed()


def test_settings_of_the_rule_that_a_method_has_anyway() -> None:
    assert clipping("acdp-pfsd", clipping__low=0.1) == LearnedThreshold(low=0.1)
    assert clipping("fedglp-adp", clipping__gamma=0) == LayerWise(gamma=0)


def test_settings_may_carry_the_name_of_a_method() -> None:
    named = {"feddpa__clipping": "quantile", "feddpa__clipping__rate": 0.3}
    assert clipping("feddpa", **named) == Quantile(rate=0.3)
    assert clipping("dp-fedavg", **named) == Fixed()


def test_a_rule_in_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "dp-fedavg"\n[set.clipping]\nrule = "quantile"\nquantile = 0.7\nshare = 0.1\n')
    found: Any = Experiment.read(file).build_method()
    assert found.clipping == Quantile(quantile=0.7, share=0.1)
    other: Any = Experiment.read(file, {"set": {"clipping.rate": 0.4}}).build_method()
    assert other.clipping == Quantile(quantile=0.7, share=0.1, rate=0.4)


def test_a_rule_survives_its_experiments_dump() -> None:
    """Resuming reads back what was stored."""
    experiment = Experiment.make({"set": {"clipping": {"rule": "quantile", "rate": 0.3}}})
    again = Experiment.make(experiment.model_dump(mode="json"))
    assert again == experiment
    assert again.build_method() == experiment.build_method()


def test_a_rule_on_the_command_line_and_in_brackets() -> None:
    given = dict(setting(text) for text in ("clipping=quantile", "clipping.quantile=0.7"))
    assert clipping(**given) == Quantile(quantile=0.7)
    name, ablation = contender("dp-fedavg[clipping=quantile,clipping.quantile=0.7]")
    assert clipping(name, **ablation) == Quantile(quantile=0.7)


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("feddpa", {"clipping.rate": 0.3}, "There is no setting of clipping = fixed 'rate'"),
        ("feddpa", {"clipping": "quantile", "clipping.rat": 1}, "setting of clipping = quantile 'rat'; did you mean"),
        ("feddpa", {"clipping": "ppo", "clipping.agent": 1}, "There is no setting of clipping = ppo 'agent'"),
        ("feddpa", {"clipping": "quantile", "clipping.quantile": 0}, "hyper-parameter clipping.quantile cannot be 0"),
        ("feddpa", {"dp-fedavg.clipping.rate": 0.3}, "There is no setting of clipping = fixed 'rate'"),
        ("feddpa", {"clipping": {"rule": 3}}, "clipping cannot be 3: write one of fixed, quantile"),
        ("feddpa", {"clipping": ["quantile"]}, "clipping cannot be"),
        ("feddpa", {"cliping.rate": 0.3}, "no setting 'cliping.rate'; did you mean 'clipping.rate'?"),
        ("feddpa", {"tau.high": 0.3}, "The hyper-parameter tau has no settings: leave tau.high out"),
        ("local", {"clipping.rate": 0.3}, "There is no setting 'clipping.rate'"),
        ("feddpa", {"quantile": 0.7}, "There is no hyper-parameter of feddpa 'quantile'"),
        ("adadp-cfl", {"clipping": "layer-wise"}, "There is no clipping 'layer-wise'"),
        ("feddpa", {"clipping": "ppo", "clipping.low": 2, "clipping.high": 2}, "low is 2 and clipping.high is 2"),
        ("acdp-pfsd", {"clipping.low": 5}, "clipping.low is 5 and clipping.high is 2: the first must be below"),
        ("adadp-cfl", {"clipping.high": 0.05}, "clipping.low is 0.1 and clipping.high is 0.05"),
    ],
)
def test_settings_that_do_not_exist_or_do_not_fit(method: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        Experiment.make({"method": method, "set": settings})
    assert sentence in str(refusal.value)
