from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as oracle

from sordino.learning.metrics import ClientMetrics
from sordino.tasks import Classification
from sordino.tasks.class_metrics import METRICS, Judged, metrics_of, sums_of


def figures(judged: Judged, positive: int | None) -> list[dict[str, float]]:
    return [dict(zip(METRICS, row, strict=True)) for row in metrics_of(sums_of(judged), positive)]


def random_clients(classes: int, sizes: tuple[int, ...], seed: int = 0) -> Judged:
    random = np.random.default_rng(seed)
    said = random.dirichlet(np.ones(classes), sum(sizes)).round(1)  # rounded: there are many equal scores
    said = (said + 0.01) / (said + 0.01).sum(axis=1, keepdims=True)
    labels = random.integers(0, classes, sum(sizes))
    return Judged(said, labels, np.array(sizes), random.integers(1, 50, (len(sizes), classes)))


def parts(judged: Judged) -> list[tuple[np.ndarray, np.ndarray]]:
    ends = np.cumsum(judged.sizes)[:-1]
    return list(zip(np.split(judged.probabilities, ends), np.split(judged.labels, ends), strict=True))


@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (2, 0), (4, None), (3, 2)])
def test_every_client_has_the_figures_of_another_library(classes: int, positive: int | None) -> None:
    judged = random_clients(classes, (40, 25, 60))
    for place, ((said, labels), found) in enumerate(zip(parts(judged), figures(judged, positive), strict=True)):
        predicted = said.argmax(axis=1)
        assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, predicted))
        assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(labels, predicted))
        assert found["log_loss"] == pytest.approx(oracle.log_loss(labels, said, labels=range(classes)))
        if classes == 2:
            assert positive is not None
            assert found["auc"] == pytest.approx(oracle.roc_auc_score(labels == positive, said[:, positive]))
        else:
            assert found["auc"] == pytest.approx(oracle.roc_auc_score(labels, said, multi_class="ovr"))
        if positive is not None:
            recall = oracle.recall_score(labels == positive, predicted == positive)
            assert found["recall"] == pytest.approx(recall)
        else:
            assert np.isnan(found["recall"])
        assert found["majority"] == pytest.approx((labels == judged.trained[place].argmax()).mean())


def test_calibration_by_hand() -> None:
    # Nine of ten surely right, eight are: one bin, 0.9 against 0.8. Two at 0.6, one right: 0.6 against 0.5.
    sure = np.array([0.9] * 10 + [0.6] * 2)
    said = np.stack([sure, 1 - sure], axis=1)
    labels = np.array([0] * 8 + [1] * 2 + [0, 1])
    (found,) = figures(Judged(said, labels, np.array([12]), np.array([[9, 1]])), 1)
    assert found["calibration_error"] == pytest.approx((10 * 0.1 + 2 * 0.1) / 12)


def test_a_model_that_predicts_one_class_is_noticed() -> None:
    said = np.tile([0.9, 0.1], (6, 1))
    labels = np.array([0, 0, 1, 0, 0, 0])
    judged = Judged(said, labels, np.array([3, 3]), np.array([[9, 1], [9, 1]]))
    first, second = figures(judged, 1)
    assert (first["one_class"], second["one_class"]) == (1, 0), "the second client has records of one class only"
    assert first["recall"] == 0
    assert first["balanced_accuracy"] == 0.5
    assert first["auc"] == 0.5, "equal scores tell nothing"
    assert first["accuracy"] == first["majority"] == pytest.approx(2 / 3)
    assert np.isnan(second["auc"])
    assert np.isnan(second["recall"])


def test_clients_without_records_have_no_figures() -> None:
    judged = random_clients(3, (0, 12, 0))
    first, middle, last = metrics_of(sums_of(judged), None)
    assert np.isnan(first).all()
    assert np.isnan(last).all()
    alone = Judged(judged.probabilities, judged.labels, np.array([12]), judged.trained[1:2])
    np.testing.assert_array_equal(middle, metrics_of(sums_of(alone), None)[0])


@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (4, None)])
def test_all_records_together_have_the_figures_of_another_library(classes: int, positive: int | None) -> None:
    judged = random_clients(classes, (40, 0, 25, 160))
    task = Classification(tuple("abcd"[:classes]), positive)
    sums = sums_of(judged)
    halves = [ClientMetrics(metrics_of(part, positive), part.sum(axis=0)) for part in (sums[:1], sums[1:])]
    reached = ClientMetrics.joined(halves)
    np.testing.assert_array_equal(reached.each, metrics_of(sums, positive))
    found = dict(zip(METRICS, reached.overall(task), strict=True))
    said, labels = judged.probabilities, judged.labels
    predicted = said.argmax(axis=1)
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, predicted))
    assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(labels, predicted))
    assert found["log_loss"] == pytest.approx(oracle.log_loss(labels, said, labels=range(classes)))
    assert found["accuracy"] != pytest.approx(np.nanmean(reached.each[:, 0])), "a large client counts for more"
    one = Judged(said, labels, np.array([len(labels)]), judged.trained[:1])
    alone = dict(zip(METRICS, metrics_of(sums_of(one), positive)[0], strict=True))
    assert found["calibration_error"] == pytest.approx(alone["calibration_error"])
    if positive is not None:
        assert found["recall"] == pytest.approx(oracle.recall_score(labels == positive, predicted == positive))


def test_pairs_of_records_of_different_clients_are_not_compared() -> None:
    # Each client ranks its own records rightly; between clients the order is the wrong one.
    said = np.array([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]])
    judged = Judged(said, np.array([1, 0, 1, 0, 0]), np.array([2, 3]), np.ones((2, 2), dtype=int))
    sums = sums_of(judged)
    assert (
        ClientMetrics(metrics_of(sums, 1), sums.sum(axis=0)).overall(Classification.numbered(2))[METRICS.index("auc")]
        == 1
    )
