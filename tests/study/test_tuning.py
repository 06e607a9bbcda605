"""Choosing among contenders: which runs are made, what decides, and what all of it would have cost."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import summary_of

import sordino
from sordino.errors import UserError
from sordino.methods import find
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.store.run_summary import Summary
from sordino.study.sweep import contender
from sordino.study.tuning import TuningRuns, idle_keys, tune

ACCURACIES = {
    "dp-fedavg[rate=0.1]": {"personal": 0.8, "global": 0.5},
    "dp-fedavg[rate=0.3]": {"personal": 0.7, "global": 0.6},
    "dp-fedavg[rate=0.2]": {"personal": 0.75, "global": 0.55},
    "dp-fedavg[rate=0.4]": {"personal": 0.6, "global": 0.4},
    "local[rate=0.1]": {"personal": 0.4, "global": None},
    "local[rate=0.3]": {"personal": 0.5, "global": None},
}


def ground(**more: Any) -> TuningRuns:
    """Contenders that are done at once, each with a mu of 0.5 unless it trains alone."""
    return TuningRuns(
        cells=lambda texts: [SimpleNamespace(method=text, key=text) for text in texts],  # type: ignore[misc]
        run=lambda wanted: {cell.key: _summary(cell.key) for cell in wanted},
        **more,
    )


def _summary(text: str) -> Summary:
    mu = 0.0 if text.startswith("local") else 0.5
    spent = {"unit": "client", "mu": [mu, mu, mu], "recipes": [], "deal": "the same for all"}
    return summary_of(run=text, accuracy=ACCURACIES[text], spent=spent)


@pytest.mark.parametrize(("by", "rate"), [("personal", 0.1), ("global", 0.3)])
def test_what_a_table_prints_decides(by: Any, rate: float) -> None:
    private, alone = tune(ground(by=by), ["dp-fedavg", "local"], {"rate": [0.1, 0.3]})
    assert private.chosen == f"dp-fedavg[rate={rate}]"
    assert alone.chosen == "local[rate=0.3]"  # it has no global model: its personal ones decide


def test_a_second_go_is_paid_for_besides_the_first() -> None:
    """Two and two runs of mu 0.5 are one of mu 1; the best of all four is taken, though it was in the first go."""
    asked = []

    def again(text: str) -> Any:
        asked.append(text)
        return "dp-fedavg", {"rate": [0.2, 0.4]}

    (found,) = tune(ground(), ["dp-fedavg"], {"rate": [0.1, 0.3]}, again)
    assert asked == ["dp-fedavg", "dp-fedavg[rate=0.1]"]  # whether it can be made, and then from the best of the first
    assert found.chosen == "dp-fedavg[rate=0.1]"
    assert (found.tries, found.runs) == (4, 4)
    assert found.epsilon["outsider"] == pytest.approx(epsilon_of(1.0, 1e-5))


def bell(text: str) -> Summary:
    """Best at a rate of 2 for dp-fedavg, of 0.15 for local; further off is worse."""
    name, settings = contender(text)
    distance = abs(math.log(float(settings["rate"]) / {"dp-fedavg": 2.0, "local": 0.15}[name]))
    figure = 1 / (1 + distance)
    mu = 0.0 if name == "local" else 0.5
    spent = {"unit": "client", "mu": [mu, mu, mu], "recipes": [], "deal": "the same for all"}
    return summary_of(run=text, accuracy={"personal": figure, "global": figure}, spent=spent)


def bells() -> TuningRuns:
    return TuningRuns(
        cells=lambda texts: [SimpleNamespace(method=text, key=text) for text in texts],  # type: ignore[misc]
        run=lambda wanted: {cell.key: bell(cell.key) for cell in wanted},
    )


def test_a_grid_grows_while_the_best_lies_on_its_edge_and_everybody_gets_as_many_tries() -> None:
    private, alone = tune(bells(), ["dp-fedavg", "local"], {"rate": [0.1, 0.2]}, extensions=9)
    # 0.1 and 0.2, then 0.4, 0.8, 1.6 and 3.2, which is worse: 1.6 lies inside.
    assert private.chosen == "dp-fedavg[rate=1.6]"
    assert (private.tries, private.on_edge) == (6, ())
    assert alone.tries == 6
    assert alone.on_edge == ()
    assert 0.13 < float(contender(alone.chosen)[1]["rate"]) < 0.17


def test_a_best_value_that_stays_on_the_edge_is_told() -> None:
    (private,) = tune(bells(), ["dp-fedavg"], {"rate": [0.1, 0.2]}, extensions=2)
    assert (private.chosen, private.on_edge) == ("dp-fedavg[rate=0.8]", ("rate",))
    (private,) = tune(bells(), ["dp-fedavg"], {"rate": [0.1, 0.2]})
    assert (private.tries, private.on_edge) == (2, ())


def test_a_method_with_fewer_keys_gets_as_many_tries() -> None:
    """Six points of rate and clip for one, so six of the rate for the other; and again as many once they grow."""
    private, alone = tune(bells(), ["dp-fedavg", "local"], {"rate": [1.0, 2.0, 4.0], "clip": [0.1, 1.0]}, extensions=9)
    assert private.tries == alone.tries >= 6
    assert 0.1 < float(contender(alone.chosen)[1]["rate"]) < 0.2
    grid = {"rate": [1.0, 2.0], "clip": [0.1, 1.0]}
    fixed, free = tune(bells(), ["dp-fedavg[clip=1]", "dp-fedavg"], grid, extensions=9)
    assert fixed.tries == free.tries


def test_a_grid_of_a_methods_own_grows_too() -> None:
    """Best at keep = 0.1, below the first grid; the other method gets as many tries at its rate."""

    def judged(text: str) -> Summary:
        keep = float(contender(text)[1].get("keep", find("blur-lus")().keep))
        return summary_of(run=text, accuracy={"personal": 1 - abs(math.log(keep / 0.1)), "global": None}, spent=FREE)

    found = tune(
        TuningRuns(bells().cells, lambda wanted: {cell.key: judged(cell.key) for cell in wanted}),
        ["blur-lus", "dp-fedavg"],
        {"rate": [0.1, 0.2, 0.4]},
        lambda best: (best, {"keep": [0.4, 0.7]} if best.startswith("blur-lus") else {}),
        extensions=9,
    )
    assert 0.08 < float(contender(found[0].chosen)[1]["keep"]) < 0.14
    assert "keep" not in found[0].on_edge
    assert found[0].tries == found[1].tries


FREE = {"unit": "client", "mu": [0.5, 0.5, 0.5], "recipes": [], "deal": "the same for all"}


def test_the_end_of_what_a_key_may_be_is_no_edge() -> None:
    """All of an update is kept at most: a best value of 1 needs no larger one."""

    def cells(texts: list[str]) -> Any:
        if any(float(contender(text)[1].get("keep", 1)) > 1 for text in texts):
            raise UserError("keep cannot be that")
        return [SimpleNamespace(method=text, key=text) for text in texts]

    def judged(text: str) -> Summary:
        return summary_of(run=text, accuracy={"personal": float(contender(text)[1]["keep"])}, spent=FREE)

    ground = TuningRuns(cells, lambda wanted: {cell.key: judged(cell.key) for cell in wanted})
    (found,) = tune(ground, ["blur-lus"], {"keep": [0.4, 0.7, 1.0]}, extensions=4)
    assert (found.chosen, found.tries, found.on_edge) == ("blur-lus[keep=1.0]", 3, ())


def test_a_key_that_changes_nothing_is_no_try() -> None:
    grid = {"rate": [1.0, 2.0, 4.0], "clip": [0.1, 1.0]}
    with_curve, without = tune(bells(), ["dp-fedavg[privacy=none]", "dp-fedavg"], grid)
    assert (with_curve.tries, without.tries) == (3, 6)
    assert "clip" not in with_curve.chosen
    assert idle_keys("pac-dp[curve=mnist]") == {"clip"}
    assert idle_keys("pac-dp") == idle_keys("pac-dp[curve=mnist,curve_sets=weights]") == idle_keys("feddpa") == set()


def test_the_value_that_a_method_has_anyway_is_no_second_try() -> None:
    """0.4 is FedDPA's tau by default: the grid of its own adds two tries, not three."""
    (found,) = tune(
        TuningRuns(bells().cells, lambda wanted: {cell.key: summary_of(run=cell.key, spent=FREE) for cell in wanted}),
        ["feddpa"],
        {"rate": [0.1, 0.2]},
        lambda best: (best, {"tau": [0.1, 0.4, 2]}),
    )
    assert found.tries == 4


@pytest.mark.parametrize("method", ["acdp-pfsd", "adadp-cfl", "dp-fedavg", "fedper", "pfedsd", "feddpa", "blur-lus"])
def test_the_threshold_is_idle_without_privacy_where_training_does_not_read_it(method: str, tmp_path: Any) -> None:
    """Without noise, partition, batches and first model follow from the seed, and of a batch with all records nothing
    is drawn: what is equal but for an idle key comes to the same accuracy."""

    def accuracy(clip: float) -> float:
        keys = {"clients": 4, "rounds": 2, "privacy": "none", "workers": 1, "partition": "iid", "model": "mlp"}
        settings = {"clip": clip, "epochs": 2, "batch": 1000, "rate": 0.3}
        result = sordino.run(method=method, data="digits", store=tmp_path, set=settings, **keys)
        return float(result["accuracy"]["personal"])

    assert (accuracy(0.001) == accuracy(100.0)) == ("clip" in idle_keys(f"{method}[privacy=none]"))
