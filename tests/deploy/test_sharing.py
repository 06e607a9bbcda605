"""Shamir's shares: enough of them give the secret, fewer give nothing, wrong ones are noticed."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sordino.deploy.protocol import secret_sharing
from sordino.deploy.protocol.secret_sharing import FIELD, SharingError, combine, split

SECRETS = st.integers(0, FIELD - 1)


def test_the_field_is_a_prime() -> None:
    """Miller and Rabin with 40 bases: a composite passes with a probability below 2^-80."""
    odd, twos = FIELD - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        value = pow(base, odd, FIELD)
        if value in (1, FIELD - 1):
            continue
        squared = [pow(value, 2**power, FIELD) for power in range(1, twos)]
        assert FIELD - 1 in squared, base
    assert FIELD < 2**256


@settings(max_examples=60, deadline=None)
@given(SECRETS, st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    threshold = data.draw(st.integers(1, count))
    places = data.draw(st.lists(st.integers(1, 100), min_size=count, max_size=count, unique=True))
    shares = dict(zip(places, split(secret, threshold, places), strict=True))
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=threshold, max_size=count, unique=True))
    assert combine({place: shares[place] for place in chosen}, threshold) == secret


def test_a_polynomial_worked_out_by_hand() -> None:
    """5 + 3 x: 8 at one, 11 at two, 14 at three."""
    assert combine({1: 8, 2: 11}, 2) == 5
    assert combine({1: 8, 2: 11, 3: 14}, 2) == 5
    assert combine({2: FIELD - 1, 4: 1}, 2) == FIELD - 3  # -3 + x


def test_below_the_threshold_every_secret_is_as_likely() -> None:
    """Whatever t - 1 shares are, each secret goes with exactly one last share: they tell nothing."""
    places = [1, 2, 3, 4]
    shares = dict(zip(places, split(17, 3, places), strict=True))
    known = {place: shares[place] for place in (1, 3)}
    for secret in (0, 17, FIELD - 1, 2**200):
        # Interpolate through the secret at zero: there is a share at place 2 that makes it true.
        last = secret_sharing._interpolate({0: secret, **known}, (0, 1, 3), 2)
        assert combine({**known, 2: last}, 3) == secret
    with pytest.raises(SharingError, match="2 shares of a secret were given, but 3"):
        combine(known, 3)


def test_two_shares_of_three_are_uniform() -> None:
    """The lowest six bits of 4,096 shares of one secret, and of two shares together; fails once in a million times."""
    found = [split(5, 3, [1, 2, 3]) for _ in range(4096)]
    for place in range(3):
        assert chisquare([sum(one[place] % 64 == k for one in found) for k in range(64)]).pvalue > 1e-6
    together = [(one[0] % 8) * 8 + one[1] % 8 for one in found]
    assert chisquare([together.count(k) for k in range(64)]).pvalue > 1e-6


@pytest.mark.parametrize("which", range(5))
def test_a_wrong_share_is_noticed_where_there_are_more_than_needed(which: int) -> None:
    shares = dict(zip(range(1, 6), split(99, 3, range(1, 6)), strict=True))
    shares[which + 1] = (shares[which + 1] + 1) % FIELD
    with pytest.raises(SharingError, match="do not belong to one secret"):
        combine(shares, 3)


def test_what_is_no_share_is_refused() -> None:
    with pytest.raises(SharingError, match="not a number below the prime"):
        combine({1: FIELD, 2: 1}, 2)
    for threshold, places in ((0, [1]), (3, [1, 2]), (1, [0, 1]), (1, [1, 1]), (1, [1, FIELD + 1])):
        with pytest.raises(SharingError):
            split(1, threshold, places)


def test_secrets_and_shares_are_new_each_time() -> None:
    assert len({secret_sharing.new_secret() for _ in range(100)}) == 100
    drawn = [tuple(split(7, 2, [1, 2])) for _ in range(100)]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))
