from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as oracle

from sordino.learning.metrics import METRICS, Judged, metrics


def figures(judged: Judged) -> list[dict[str, float]]:
    return [dict(zip(METRICS, row, strict=True)) for row in metrics(judged)]


def random_clients(classes: int, positive: int | None, sizes: tuple[int, ...], seed: int = 0) -> Judged:
    random = np.random.default_rng(seed)
    said = random.dirichlet(np.ones(classes), sum(sizes)).round(1)  # rounded: there are many equal scores
    said = (said + 0.01) / (said + 0.01).sum(axis=1, keepdims=True)
    labels = random.integers(0, classes, sum(sizes))
    return Judged(said, labels, np.array(sizes), random.integers(1, 50, (len(sizes), classes)), positive)


def parts(judged: Judged) -> list[tuple[np.ndarray, np.ndarray]]:
    ends = np.cumsum(judged.sizes)[:-1]
    return list(zip(np.split(judged.probabilities, ends), np.split(judged.labels, ends), strict=True))


@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (2, 0), (4, None), (3, 2)])
def test_every_client_has_the_figures_of_another_library(classes: int, positive: int | None) -> None:
    judged = random_clients(classes, positive, (40, 25, 60))
    for place, ((said, labels), found) in enumerate(zip(parts(judged), figures(judged), strict=True)):
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
    (found,) = figures(Judged(said, labels, np.array([12]), np.array([[9, 1]]), 1))
    assert found["calibration_error"] == pytest.approx((10 * 0.1 + 2 * 0.1) / 12)


def test_a_model_that_predicts_one_class_is_noticed() -> None:
    said = np.tile([0.9, 0.1], (6, 1))
    labels = np.array([0, 0, 1, 0, 0, 0])
    judged = Judged(said, labels, np.array([3, 3]), np.array([[9, 1], [9, 1]]), 1)
    first, second = figures(judged)
    assert (first["one_class"], second["one_class"]) == (1, 0), "the second client has records of one class only"
    assert first["recall"] == 0
    assert first["balanced_accuracy"] == 0.5
    assert first["auc"] == 0.5, "equal scores tell nothing"
    assert first["accuracy"] == first["majority"] == pytest.approx(2 / 3)
    assert np.isnan(second["auc"])
    assert np.isnan(second["recall"])


def test_clients_without_records_have_no_figures() -> None:
    judged = random_clients(3, None, (0, 12, 0))
    first, middle, last = metrics(judged)
    assert np.isnan(first).all()
    assert np.isnan(last).all()
    alone = Judged(judged.probabilities, judged.labels, np.array([12]), judged.trained[1:2], None)
    np.testing.assert_array_equal(middle, metrics(alone)[0])
