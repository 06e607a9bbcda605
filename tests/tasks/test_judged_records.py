"""Judgements of models: figures against other libraries, intervals that hold, and too few records that are told."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import confusion_matrix, precision_score, recall_score, roc_auc_score

from sordino.errors import UserError
from sordino.tasks import Classification
from sordino.tasks.intervals import Figure, area, auc_figure, wilson
from sordino.tasks.judgement import choose_point, judge

SICK = Classification.of(("healthy", "ill"))
THREE = Classification(("a", "b", "c"))


def scored(records: int, seed: int = 0, share: float = 0.3, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (records, 2) and labels; the ill have higher ones."""
    random = np.random.default_rng(seed)
    labels = (random.random(records) < share).astype(np.int64)
    scores = 1 / (1 + np.exp(1 - shift * labels - random.normal(size=records)))
    return np.stack([1 - scores, scores], axis=1), labels


def value(figure: Figure | None) -> float:
    assert figure is not None
    assert figure.low <= figure.value <= figure.high
    return figure.value


def test_figures_are_those_of_scikit_learn() -> None:
    said, labels = scored(300)
    found = judge(SICK, said, labels)
    called = said.argmax(axis=1)
    assert value(found.figures["auc"]) == pytest.approx(roc_auc_score(labels, said[:, 1]))
    assert value(found.figures["recall"]) == pytest.approx(recall_score(labels, called))
    assert value(found.figures["precision"]) == pytest.approx(precision_score(labels, called))
    assert found.confusion == confusion_matrix(labels, called).tolist()
    assert value(found.figures["calibration"]) == pytest.approx(said[:, 1].mean() - labels.mean())
    assert found.classes == {"healthy": int((labels == 0).sum()), "ill": int(labels.sum())}
    assert found.notes == []


def test_intervals_of_shares_are_wilson_s() -> None:
    for hits, total in ((3, 10), (0, 7), (40, 40)):
        expected = stats.binomtest(hits, total).proportion_ci(method="wilson")
        found = wilson(hits, total)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_intervals_of_areas_hold_the_true_one() -> None:
    """At 95 %, of 600 draws at least 92 % and at most 99 % must: the chance of less or more is below 1e-3. The true
    area of two normals one deviation apart is the normal's distribution at 1 / sqrt(2)."""
    true, held = float(stats.norm.cdf(1 / np.sqrt(2))), 0
    random = np.random.default_rng(1)
    for _ in range(600):
        members = np.arange(60) < 20
        scores = random.normal(size=60) + members
        figure = auc_figure(area(scores, members), 20, 40)
        held += figure.low <= true <= figure.high
    assert 0.92 <= held / 600 <= 0.99


def test_an_area_of_one_has_a_width() -> None:
    figure = auc_figure(1.0, 6, 6)
    assert figure.high == 1.0
    assert 0.5 < figure.low < 0.85


def test_three_test_records_give_no_area() -> None:
    said, labels = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]]), np.array([0, 0, 1])
    found = judge(SICK, said, labels)
    assert all(one is None for one in found.figures.values())
    assert found.notes == ["There are 3 test records, 1 of them with 'ill': too few to judge a model by."]
    # More records, but few of the rare class: an accuracy, but no area.
    said, labels = scored(40, share=0.0)
    labels[:3] = 1
    found = judge(SICK, said, labels)
    assert found.figures["accuracy"] is not None
    assert found.figures["auc"] is found.figures["recall"] is None
    assert "3 of them with 'ill': too few for an AUC, which takes 5 with and 5 without" in found.notes[0]


def test_recall_zero_is_told_with_what_to_do() -> None:
    said, labels = scored(100)
    none = np.stack([np.full(100, 0.8), np.full(100, 0.2)], axis=1)
    assert any("Nobody is predicted as 'ill': recall is 0" in note for note in judge(SICK, none, labels).notes)
    assert not any("recall is 0" in note for note in judge(SICK, said, labels).notes)


def test_the_worst_group_is_found() -> None:
    """Of a column whose second value has scores that say nothing."""
    said, labels = scored(400, shift=3.0)
    ward = np.where(np.arange(400) % 2, "b", "a")
    said[ward == "b"] = said[ward == "b"][::-1]
    found = judge(SICK, said, labels, {"ward": ward.tolist(), "row": [str(k) for k in range(400)]})
    assert [one.name for one in found.groups] == ["ward = a", "ward = b"]  # `row` has too many values
    assert found.worst is not None
    assert found.worst.name == "ward = b"
    assert value(found.worst.auc) == pytest.approx(roc_auc_score(labels[ward == "b"], said[ward == "b", 1]))
    assert found.worst.records == 200


def test_several_classes_have_the_mean_of_their_areas() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 200)
    said = random.dirichlet(np.ones(3), 200) + np.eye(3)[labels] * 0.3
    said /= said.sum(axis=1, keepdims=True)
    found = judge(THREE, said, labels)
    expected = roc_auc_score(labels, said, multi_class="ovr", average="macro")
    assert value(found.figures["auc"]) == pytest.approx(expected)
    assert found.figures["recall"] is None


def test_operating_points_do_what_they_say() -> None:
    said, labels = scored(200, share=0.2)
    for wanted in (0.5, 0.9, 1.0):
        point = choose_point(SICK, said, labels, f"recall={wanted}")
        at = judge(SICK, said, labels, threshold=point.threshold)
        assert value(at.figures["recall"]) >= wanted
        # The highest such threshold: one that leaves out the lowest of those that are found misses the wish.
        lowest = said[(labels == 1) & (said[:, 1] >= point.threshold), 1].min()
        assert recall_score(labels, said[:, 1] > lowest) < wanted
    missed, alarm = 7.0, 2.0
    point = choose_point(SICK, said, labels, "cost=7:2")

    def cost(threshold: float) -> float:
        called = said[:, 1] >= threshold
        return missed * (~called & (labels == 1)).sum() + alarm * (called & (labels == 0)).sum()

    assert cost(point.threshold) == min(cost(t) for t in [*said[:, 1], 2.0])
    assert choose_point(SICK, said, labels, "threshold=0.2").threshold == 0.2


def test_a_threshold_decides_for_the_positive_class() -> None:
    said = np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    assert SICK.decide(said, 0.2).tolist() == [1, 1, 0]
    assert SICK.decide(said).tolist() == [0, 1, 0]
    three = Classification(("a", "b", "c"), 2)
    assert three.decide(np.array([[0.3, 0.5, 0.2], [0.3, 0.6, 0.1]]), 0.15).tolist() == [2, 1]
    assert SICK.tell(said, 0.2) == ["ill", "ill", "healthy"]


def test_operating_points_that_cannot_be_chosen() -> None:
    said, labels = scored(100)
    for wish in ("recall", "recall=2", "cost=0", "cost=1:2:3", "f1=0.5", "threshold=1"):
        with pytest.raises(UserError, match=r"is not understood: write recall=0\.9"):
            choose_point(SICK, said, labels, wish)
    with pytest.raises(UserError, match=r"8 test records, 2 of them with 'ill', are too few"):
        choose_point(SICK, said[:8], np.array([1, 1, 0, 0, 0, 0, 0, 0]), "recall=0.9")
    with pytest.raises(UserError, match="needs a class that is looked for"):
        choose_point(THREE, np.ones((20, 3)) / 3, np.arange(20) % 3, "recall=0.9")
