"""Choosing among contenders: which runs are made, what decides, and what all of it would have cost."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import summary_of

from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.store.run_summary import Summary
from sordino.study.sweep import contender
from sordino.study.tuning import TuningRuns, tune

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
