"""Weights and mixtures against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

from sordino.parts.blending import (
    ADJUSTED,
    AVERAGED_ADJUSTED,
    FOLDS,
    LOCAL,
    MEMBERS,
    PRIOR,
    Blended,
    folds,
    mixture,
    offsets,
    priors,
    trust_of,
    weights,
)
from sordino.privacy.unit import Unit
from sordino.tasks import Classification
from sordino.tasks.recalibration import power

HERE = torch.ones(2, dtype=torch.bool)
AS_THEY_ARE = torch.zeros(2, 2)
TASK = Classification.numbered(2)


def test_members_that_know_the_same_are_weighed_alike() -> None:
    found = weights(torch.log(torch.tensor([[0.7, 0.7], [0.2, 0.2]])), HERE, trust=1)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_a_member_that_knows_nothing_keeps_what_the_prior_gives_it() -> None:
    """Ten records, each impossible under the second member: its share is that of its one pretended record of twelve."""
    likelihoods = torch.tensor([[0.0, -1e9]]).repeat(10, 1)
    found = weights(likelihoods, HERE, trust=1)
    assert found.tolist() == pytest.approx([(10 + PRIOR) / (10 + 2 * PRIOR), PRIOR / (10 + 2 * PRIOR)])


def test_members_that_know_different_records_share_by_their_number() -> None:
    """Three records that only the first can explain and one that only the second can: (3 + 1) and (1 + 1) of 6."""
    likelihoods = torch.tensor([[0.0, -1e9]] * 3 + [[-1e9, 0.0]])
    assert weights(likelihoods, HERE, trust=1).tolist() == pytest.approx([4 / 6, 2 / 6])


@pytest.mark.parametrize("trust", [1.0, 0.25])
def test_weights_are_the_top_of_their_objective(trust: float) -> None:
    """Three members of the federation with a quarter of their prior leave the local one 1 + 3 x 3/4 records."""
    prior = PRIOR * np.array([1 + 3 * (1 - trust), trust, trust, trust])
    random = np.random.default_rng(0)
    likelihoods = np.log(random.dirichlet([0.3, 0.5, 1.0, 2.0], size=40))

    def loss(free: np.ndarray) -> float:
        logs = free - np.log(np.exp(free).sum())
        return -float(np.log(np.exp(likelihoods + logs).sum(axis=1)).sum() + (prior * logs).sum())

    best = minimize(loss, np.zeros(4), tol=1e-12).x
    found = weights(torch.from_numpy(likelihoods), torch.ones(4, dtype=torch.bool), trust)
    assert found.tolist() == pytest.approx((np.exp(best) / np.exp(best).sum()).tolist(), abs=1e-4)


def test_a_member_that_is_not_there_has_no_weight_and_no_say() -> None:
    likelihoods = torch.log(torch.tensor([[0.5, 0.9, 0.4], [0.3, 0.9, 0.6]]))
    there = torch.tensor([True, False, True])
    found = weights(likelihoods, there, trust=1)
    assert found[1] == 0
    torch.testing.assert_close(found[there], weights(likelihoods[:, there], HERE, trust=1))


def test_without_records_the_prior_decides() -> None:
    assert weights(torch.zeros(0, 2), HERE, trust=1).tolist() == [0.5, 0.5]


def test_what_the_federation_is_not_trusted_with_is_the_local_models() -> None:
    there = torch.tensor([True, True, False, True, True])
    assert LOCAL == 0
    for share, expected in ((1.0, [1, 1, 0, 1, 1]), (0.2, [3.4, 0.2, 0, 0.2, 0.2]), (0.0, [4, 0, 0, 0, 0])):
        assert priors(there, share).tolist() == pytest.approx([PRIOR * records for records in expected])


def test_whoever_drowns_in_noise_has_to_earn_all_of_its_weight() -> None:
    """Two records, each twice as likely under the local member: at full trust the other still has a third or more; a
    member without trust goes down to nothing, for it is never the better one."""
    likelihoods = torch.log(torch.tensor([[0.8, 0.4], [0.8, 0.4]]))
    assert weights(likelihoods, HERE, trust=1)[1] > 1 / 3
    assert weights(likelihoods, HERE, trust=0)[1] < 1e-6
    assert weights(torch.zeros(0, 2), HERE, trust=0).tolist() == [1, 0]


def test_trust_grows_with_the_square_of_what_can_be_trained() -> None:
    """4,900 parameters have a root of 70: whole trust takes 36 times as many, half as many leave a quarter. Of what
    records could train a hundredth counts."""
    assert trust_of(36 * 70, 4900, Unit.CLIENT) == trust_of(math.inf, 4900, Unit.CLIENT) == 1
    assert trust_of(18 * 70, 4900, Unit.CLIENT) == pytest.approx(1 / 4)
    assert trust_of(1800 * 70, 4900, Unit.RECORD) == pytest.approx(1 / 4)
    assert trust_of(18 * 35, 1225, Unit.CLIENT) == pytest.approx(1 / 4)
    assert trust_of(0, 4900, Unit.CLIENT) == 0


def test_a_mixture_mixes_probabilities() -> None:
    two = torch.log(torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]))
    mixed = mixture(TASK, two, torch.tensor([0.25, 0.75]), torch.ones(2), AS_THEY_ARE).exp()
    torch.testing.assert_close(mixed, torch.tensor([[0.25 * 0.9 + 0.75 * 0.2, 0.25 * 0.1 + 0.75 * 0.8]]))


def test_who_has_no_weight_cannot_spoil_a_mixture() -> None:
    two = torch.stack([torch.log(torch.tensor([[0.9, 0.1]])), torch.tensor([[-math.inf, 0.0]])])
    torch.testing.assert_close(mixture(TASK, two, torch.tensor([1.0, 0.0]), torch.ones(2), AS_THEY_ARE), two[0])


def test_a_blended_network_gives_the_logarithms_of_mixed_probabilities() -> None:
    torch.manual_seed(0)
    one, two, x = nn.Linear(3, 4), nn.Linear(3, 4), torch.randn(5, 3)
    shares, labels = torch.tensor([0.3, 0.5, 0.2]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    added = torch.stack([torch.zeros(4), torch.zeros(4), labels.log()])
    model = Blended(Classification.numbered(4), [one, two, two], shares, torch.tensor([1.0, 0.5, 1.0]), added)
    adjusted = two(x).softmax(dim=1) * labels
    expected = 0.3 * one(x).softmax(dim=1) + 0.5 * (two(x) / 2).softmax(dim=1) + 0.2 * functional.normalize(adjusted, 1)
    torch.testing.assert_close(model(x).exp(), expected)
    assert len(model.members) == 2  # the second is asked once


def test_a_model_that_overflowed_is_left_out() -> None:
    """Without the local one, what the others are not trusted with goes to nobody."""
    likelihoods = torch.log(torch.tensor([[0.7, 0.2], [0.6, 0.3]]))
    spoiled = torch.column_stack([torch.full((2,), torch.nan), likelihoods])
    present = torch.tensor([False, True, True])
    torch.testing.assert_close(weights(spoiled, present, trust=0.1)[1:], weights(likelihoods, HERE, trust=1))
    assert weights(spoiled, present, trust=0.1)[0] == 0


def test_every_label_is_counted_as_three_records_more_than_there_are() -> None:
    task = Classification.numbered(3)
    found = task.frequencies(torch.tensor([0, 2, 0, 0, 0, 0])).exp()
    torch.testing.assert_close(found, torch.tensor([8 / 15, 3 / 15, 4 / 15]))
    torch.testing.assert_close(task.frequencies(torch.zeros(0, dtype=torch.int64)).exp(), torch.full((3,), 1 / 3))


def test_a_record_is_not_judged_by_its_own_label() -> None:
    found = Classification.numbered(3).frequencies_without_each(torch.tensor([0, 0, 2])).exp()
    torch.testing.assert_close(found * 11, torch.tensor([[4.0, 3.0, 4.0], [4.0, 3.0, 4.0], [5.0, 3.0, 3.0]]))


def test_only_what_is_adjusted_meets_the_clients_labels() -> None:
    found = offsets(torch.tensor([0.3, -0.3]))
    for place in range(len(MEMBERS)):
        expected = [0.3, -0.3] if place in (ADJUSTED, AVERAGED_ADJUSTED) else [0, 0]
        assert found[place].tolist() == pytest.approx(expected)


def test_probabilities_are_raised_to_powers() -> None:
    """The square roots of 0.64 and 0.36 are 0.8 and 0.6, of which 4/7 and 3/7 are left."""
    found = TASK.sharpen(torch.log(torch.tensor([[0.64, 0.36]])), 0.5, AS_THEY_ARE[0]).exp()
    torch.testing.assert_close(found, torch.tensor([[4 / 7, 3 / 7]]))


def test_who_is_too_sure_is_made_less_sure() -> None:
    """Sure of the first class to one in a thousand, but right in half of forty records.

    Raised to 0.2, odds of 999 are 3.98: 20 (log 0.799 + log 0.201) - 4 log(0.2)^2 = -46.9. Raised to 0.1 or to 0.3 the
    same comes to -51.3 and -52.0.
    """
    sure = torch.log(torch.tensor([[0.999, 0.001]])).repeat(40, 1)
    labels = torch.arange(40) % 2
    assert power(TASK, sure, labels, AS_THEY_ARE[0]) == 0.2
    assert power(TASK, sure, torch.zeros(40, dtype=torch.int64), AS_THEY_ARE[0]) >= 1
    assert power(TASK, sure[:0], labels[:0], AS_THEY_ARE[0]) == 1


def test_few_records_do_not_change_how_sure_a_member_is() -> None:
    """One record at 0.6 gains at most log 0.69 - log 0.6 = 0.14 by squaring, and caution costs 4 log(2)^2 = 1.9."""
    assert power(TASK, torch.log(torch.tensor([[0.6, 0.4]])), torch.tensor([0]), AS_THEY_ARE[0]) == 1


def test_folds_spread_every_label() -> None:
    labels = np.array([2] * 3 * FOLDS + [0] * FOLDS + [1] * (FOLDS + 1))
    dealt = folds(labels, seed=5)
    for label, least in ((2, 3), (0, 1), (1, 1)):
        counts = np.bincount(dealt[labels == label], minlength=FOLDS)
        assert least <= counts.min() <= counts.max() <= least + 1
    assert np.ptp(np.bincount(dealt)) <= 1
    assert (dealt == folds(labels, seed=5)).all()
    assert (dealt != folds(labels, seed=6)).any()
