"""A verdict is a test: paired differences over seeds, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers import row_of
from scipy import stats

from sordino.study import verdict
from sordino.study.compare import ComparisonRow, OverSeeds, SeedFigures
from sordino.study.verdict import Difference, sentence, verdicts


def row(method: str, accuracies: Sequence[float | None], epsilon: float | None, unit: str = "client") -> ComparisonRow:
    known = [value for value in accuracies if value is not None]
    return row_of(
        method,
        unit=unit,
        seeds=len(accuracies),
        accuracy={"personal": OverSeeds(sum(known) / len(known), 0.0) if known else None},
        by_seed=[SeedFigures(seed, f"run-{seed}", {"personal": value}) for seed, value in enumerate(accuracies)],
        epsilon={"outsider": epsilon, "peer": epsilon, "server": None if epsilon is None else 10 * epsilon},
    )


def difference(one: ComparisonRow, other: ComparisonRow, comparisons: int = 1) -> Difference:
    return verdict.difference(one.sample(), other.sample(), comparisons)


LOCAL = row("local", [0.80, 0.81, 0.85], 0.0)
FEDDPA = row("feddpa", [0.90, 0.92, 0.94], 8.0)


def test_the_interval_by_hand() -> None:
    """Differences 0.10, 0.11, 0.09: mean 0.1, deviation 0.01, t of two degrees of freedom 4.3027."""
    found = difference(FEDDPA, LOCAL)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found.mean == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-6)
    assert (found.verdict, found.seeds) == ("better", 3)
    assert difference(LOCAL, FEDDPA).verdict == "worse"
    assert sentence(found) == ("feddpa against local: +10.0 points, 95% interval +7.5 to +12.5 over 3 seeds: better.")


def test_methods_without_test_records_are_not_ranked() -> None:
    """Clients with one record each have none to test on; with one seed of several the others count."""
    untested = row("untested", [None, None, None], 8.0)
    sentences, differences = verdicts([untested, replace(untested, method="other")], "outsider")
    assert differences == []
    assert sentences == [
        "No client has records to test models on with untested, other: not ranked. Give clients more records, or have "
        "fewer clients."
    ]
    sentences, (found,) = verdicts([LOCAL, untested, FEDDPA], "outsider")
    assert found == difference(FEDDPA, LOCAL)
    assert "untested" in sentences[-1]
    partly = row("feddpa", [0.90, None, 0.94], 8.0)
    assert difference(partly, LOCAL).seeds == 2


def test_seeds_are_paired() -> None:
    """Accuracies that scatter together differ clearly; the same ones in another order do not."""
    low, high = [0.2, 0.5, 0.8], [0.25, 0.56, 0.86]
    assert difference(row("a", high, 8.0), row("b", low, 8.0)).verdict == "better"
    assert difference(row("a", high, 8.0), row("b", low[::-1], 8.0)).verdict == "no difference shown"


def test_the_interval_is_that_of_scipys_paired_test() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 7))
    expected = stats.ttest_rel(*draws).confidence_interval(0.95)
    found = difference(row("a", draws[0].tolist(), 8.0), row("b", draws[1].tolist(), 8.0))
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_several_comparisons_share_the_error() -> None:
    """Of comparisons without any difference, all intervals together miss zero in at most one case of twenty: with 400
    cases of three comparisons each, 20 are expected, and more than 38 have a probability below 1e-4."""
    draws = np.random.default_rng(1).normal(size=(400, 4, 5))
    wrong = 0
    for one in draws:
        rows = [row(str(number), values.tolist(), 8.0) for number, values in enumerate(one)]
        wrong += any(difference(rows[0], other, 3).verdict != "no difference shown" for other in rows[1:])
    assert 1 <= wrong <= 38


def test_the_best_is_named_with_its_tests() -> None:
    sentences, found = verdicts([LOCAL, FEDDPA], "outsider")
    assert sentences == ["feddpa has the best personal accuracy, 92.0%.", sentence(difference(FEDDPA, LOCAL))]
    assert [one.verdict for one in found] == ["better"]


def test_a_federation_that_does_not_pay_is_told_so() -> None:
    bad = row("dp-fedavg", [0.50, 0.51, 0.55], 8.0)
    sentences, _ = verdicts([LOCAL, bad], "outsider")
    assert sentences[-1] == "dp-fedavg does not pay here: local training gives 82.0% without spending any privacy."
    unclear = row("dp-fedavg", [0.70, 0.95, 0.80], 8.0)
    sentences, _ = verdicts([unclear, LOCAL, FEDDPA], "outsider")
    assert "That dp-fedavg gains anything over local training is not shown here." in sentences


def test_a_gain_over_training_alone_is_a_question_of_its_own() -> None:
    """Its interval does not widen with the number of other methods; those among rivals do."""
    many = [row(f"rival {number}", [0.7, 0.71, 0.72 + number / 1000], 8.0) for number in range(10)]
    _, found = verdicts([LOCAL, FEDDPA, *many], "outsider")
    by_pair = {(one.method, one.against): one for one in found}
    assert by_pair["feddpa", "local"] == difference(FEDDPA, LOCAL)
    assert by_pair["rival 3", "local"] == difference(many[3], LOCAL)
    assert by_pair["feddpa", "rival 3"] == difference(FEDDPA, many[3], 10)


def test_what_more_seeds_would_do_is_told_where_many_cannot_be_told_apart() -> None:
    """Half of an interval for 2 rivals, in deviations: t at 0.9875 is 6.205 for 3 seeds and 3.495 for 5."""
    near = [row("a", [0.90, 0.91, 0.95], 8.0), row("b", [0.91, 0.90, 0.93], 8.0)]
    sentences, _ = verdicts([FEDDPA, *near], "outsider")
    assert (
        "With 3 seeds and 2 rivals at once only large differences show: with 5 seeds the intervals are about 2.3 times "
        "narrower."
    ) in sentences
    far = [row("a", [0.20, 0.22, 0.24], 8.0), row("b", [0.10, 0.12, 0.14], 8.0)]
    assert not any("narrower" in one for one in verdicts([FEDDPA, *far], "outsider")[0])


def test_one_seed_is_no_proof() -> None:
    sentences, found = verdicts([row("local", [0.8], 0.0), row("feddpa", [0.9], 8.0)], "outsider")
    assert "from one seed" in sentences[1]
    assert found[0].low is None


def test_unequal_epsilons_are_told() -> None:
    sentences, _ = verdicts([row("dp-fedavg", [0.5, 0.6], 8.0), row("feddpa", [0.7, 0.8], 9.0)], "outsider")
    assert sentences[0] == "The private methods are NOT at equal epsilon: dp-fedavg 8.00, feddpa 9.00."


def test_a_method_without_privacy_does_not_contend() -> None:
    free = row("fedavg", [0.99, 0.99, 0.99], None)
    assert verdicts([free, LOCAL, FEDDPA], "outsider")[0][0].startswith("feddpa has the best personal accuracy")
    assert verdicts([free], "outsider") == ([], [])


def test_what_protects_clients_is_not_ranked_with_what_protects_records() -> None:
    records = [row("pac-dp", [0.98, 0.99, 1.0], 4.0, "record"), row("dp-scaffold", [0.5, 0.6, 0.55], 4.0, "record")]
    sentences, found = verdicts([LOCAL, FEDDPA, *records], "outsider")
    assert sentences[0].startswith("Client-level and record-level methods are not ranked together")
    assert sentences[1] == "Protecting one client: feddpa has the best personal accuracy, 92.0%."
    assert "Protecting one record: pac-dp has the best personal accuracy, 99.0%." in sentences
    assert {(one.method, one.against) for one in found} >= {("feddpa", "local"), ("pac-dp", "dp-scaffold")}
    assert ("feddpa", "pac-dp") not in {(one.method, one.against) for one in found}
