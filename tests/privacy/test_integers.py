"""Noise in whole numbers: exact masses, exact bounds, no word used twice, and what is added to epsilon."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare, norm, poisson

from sordino.privacy import integers
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.integers import CLIENTS, COLUMNS, HALF, RECORDS, TABLE_DEVIATION, WORD, Gap, Grid, GridError
from sordino.privacy.noise import Covered, Secure, Seeded, system_words

UNIT = COLUMNS * WORD
SEEDED = Seeded(3, "identity")
SECURE = Secure(Seeded(0))
NOTHING, BOTH = Covered(torch.zeros(1, 1), []), Covered(torch.zeros(2, 1), [])
"""Values of one client and of two."""
FLOATS = st.floats(width=32)


def words(*purpose: object) -> integers.Words:
    """The random words of a purpose, from their beginning."""
    return SEEDED.words(purpose, [0], NOTHING)[0]


@pytest.fixture(scope="module")
def masses() -> list[int]:
    return integers.masses()


@pytest.fixture(scope="module")
def ideal() -> np.ndarray:
    """The masses of N_Z(0, 4096^2) in units of 2^-81, rounded down, by another road: decimals, each by itself."""
    with localcontext() as context:
        context.prec = 60
        # By Poisson's summation formula the weights add up to 4096 sqrt(2 pi), but for e^-300000000.
        whole = TABLE_DEVIATION * (2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494")).sqrt()
        side = [(Decimal(-x * x) / 2**25).exp() / whole * UNIT for x in range(0, HALF + 1, 64)]
        return np.array([Fraction(mass) for mass in side], dtype=object)


# ---- the table


def test_the_masses_add_up_and_are_those_of_the_discrete_gaussian(masses: list[int], ideal: np.ndarray) -> None:
    assert sum(masses) == UNIT
    assert len(masses) == COLUMNS
    mine = np.array(masses[HALF::64], dtype=object)
    wanted = ideal[: len(mine)]
    taken = wanted - mine  # units that were taken away; what was rounded up is below one
    inner = np.arange(len(mine)) * 64 <= TABLE_DEVIATION
    assert all(-1 < one <= 0 for one in taken[~inner])
    assert all(0 < one < 20 for one in taken[inner])
    assert max(taken[inner] / wanted[inner]) < 2e-17
    mirror = zip(masses[HALF + 1 :], reversed(masses[1:HALF]), strict=True)
    assert max(abs(right - left) for right, left in mirror) <= 1  # as likely to each side, but for the last unit


def test_a_draw_is_as_near_to_the_ideal_as_is_said(masses: list[int]) -> None:
    side = integers.weights()
    whole = 2 * sum(side) - side[0]
    off = sum(abs(mass * whole - side[abs(x - HALF)] * UNIT) for x, mass in enumerate(masses))
    assert Fraction(off, 2 * whole * UNIT) < 3.6e-20
    assert 2 * norm.sf(HALF / TABLE_DEVIATION) < 1.3e-57


def test_the_columns_add_up_to_the_masses_exactly(masses: list[int]) -> None:
    table = integers.gaussian_table()
    assert integers.table_masses(table) == masses
    assert table.thresholds.dtype == np.uint64
    assert len(table.thresholds) == len(table.aliases) == COLUMNS


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=40))
def test_any_masses_are_divided_among_columns_exactly(parts: list[int]) -> None:
    wanted = [*parts, -sum(parts) % WORD]
    while sum(wanted) < WORD * len(wanted):
        wanted[0] += WORD
    wanted += [0] * (sum(wanted) // WORD - len(wanted)) if sum(wanted) < WORD * 4000 else []
    if sum(wanted) == WORD * len(wanted):
        assert integers.table_masses(integers.columns(wanted)) == wanted


def test_a_table_that_does_not_add_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = integers.columns

    def spoilt(wanted: list[int]) -> integers.SamplingTable:
        table = original(wanted)
        table.thresholds[HALF] += np.uint64(1)
        return table

    monkeypatch.setattr(integers, "columns", spoilt)
    with pytest.raises(AssertionError, match="do not add up"):
        integers.gaussian_table.__wrapped__()


def test_a_draw_reads_its_column_and_its_sixty_four_bits() -> None:
    table = integers.gaussian_table()
    columns = np.array([0, HALF, HALF + 5000, COLUMNS - 1], dtype=np.uint32)
    limits = table.thresholds[columns]
    for at, numbers in ((limits, table.aliases[columns]), (limits - np.uint64(1), columns)):
        # The bits above a column's seventeen do not count.
        raw = np.concatenate([at, (columns | np.uint32(0xABC00000)).view(np.uint64)])
        expected = np.where(limits == 0, table.aliases[columns], numbers).astype(np.int64) - HALF
        assert integers.draws(lambda count, raw=raw: raw, 4).tolist() == expected.tolist()


# ---- draws


@pytest.mark.parametrize("source", [SEEDED, SECURE], ids=["seeded", "secure"])
def test_draws_fall_as_often_as_their_masses_say(source: Seeded | Secure, masses: list[int]) -> None:
    """A million draws, in bins of 64 numbers; a right sampler fails once in a million times."""
    count = 2**20
    (stream,) = source.words(("masses",), [1], NOTHING)
    drawn = integers.draws(stream, count)
    bins = 64
    expected = np.array([sum(masses[k : k + bins]) / UNIT for k in range(0, COLUMNS, bins)]) * count
    seen = np.bincount((drawn + HALF) // bins, minlength=COLUMNS // bins)
    often = expected > 10
    observed = np.append(seen[often], seen[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-6
    assert chisquare(np.bincount(drawn & 63, minlength=64)).pvalue > 1e-6  # within the bins too


@pytest.mark.parametrize("source", [SEEDED, SECURE], ids=["seeded", "secure"])
@pytest.mark.parametrize("grid", [CLIENTS, RECORDS], ids=["clients", "records"])
def test_noise_has_the_variance_that_is_charged(source: Seeded | Secure, grid: Grid) -> None:
    """Half the noise, noise of one draw and noise of one draw used twice are all far outside."""
    count = 2**19
    (stream,) = source.words(("variance",), [1], NOTHING)
    noise = grid.noise(stream, count)
    assert grid.variance == 2**24 * (grid.factor**2 + 1)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], count)
    assert low < float((noise.astype(float) ** 2).sum()) / grid.variance < high
    edges = norm.ppf(np.linspace(0, 1, 513)) * grid.deviation
    assert chisquare(np.histogram(noise, edges)[0]).pvalue > 1e-6
    # The second draw fills the gaps between multiples of the factor.
    assert chisquare(np.bincount(noise % grid.factor, minlength=grid.factor)).pvalue > 1e-6
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 6 / math.sqrt(count)
    assert abs(np.corrcoef(np.abs(noise[1:]), np.abs(noise[:-1]))[0, 1]) < 6 / math.sqrt(count)


def test_tails_are_as_heavy_as_they_should_be() -> None:
    """Four million draws; each count within the Poisson distribution's 1 - 1e-6."""
    drawn, limits = np.abs(integers.draws(words("tails"), 2**22)), np.array([3.0, 4.0, 4.5, 5.0])
    expected = 2**22 * 2 * norm.sf((np.floor(limits * TABLE_DEVIATION) + 0.5) / TABLE_DEVIATION)
    counts = (drawn[:, None] > np.floor(limits * TABLE_DEVIATION)).sum(axis=0)
    assert ((poisson.ppf(5e-7, expected) <= counts) & (counts <= poisson.ppf(1 - 5e-7, expected))).all()


def test_the_table_s_ends_can_be_drawn() -> None:
    table = integers.gaussian_table()
    for end in (0, COLUMNS - 1):
        assert table.thresholds[end] == 1  # one of 2^81
        raw = np.array([0, end], dtype=np.uint64)
        assert integers.draws(lambda count, raw=raw: raw, 1).tolist() == [end - HALF]


class Counted:
    """A source that notes how many words it gave, and gives none twice."""

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []

    def __call__(self, count: int) -> np.ndarray:
        self.given.append(system_words(count))
        return self.given[-1]


@pytest.mark.parametrize(
    "count", [1, 2, 3, 1000, integers.DRAWS_TOGETHER, integers.DRAWS_TOGETHER + 1, 3 * integers.DRAWS_TOGETHER - 1]
)
def test_every_number_takes_three_words_of_its_own(count: int) -> None:
    stream = Counted()
    noise = CLIENTS.noise(stream, count)
    assert len(noise) == count
    assert sum(len(part) for part in stream.given) == 3 * count
    # 3 S and more lie between two numbers of a row that share their words; none of them is the same row again.
    again = CLIENTS.noise(stream, count)
    assert count < 3 or not np.array_equal(noise, again)


def test_every_word_of_a_block_counts() -> None:
    count = 64
    raw = system_words(3 * count).copy()
    first = CLIENTS.noise(lambda wanted: raw.copy(), count)
    changed = set()
    for place in range(3 * count):
        other = raw.copy()
        other[place] = ~other[place]
        now = CLIENTS.noise(lambda wanted, other=other: other, count)
        changed.update(np.flatnonzero(now != first).tolist())
        assert (now != first).sum() <= 2  # a word of columns serves two numbers
    assert changed == set(range(count))


def test_numbers_of_a_long_row_share_nothing() -> None:
    row = CLIENTS.noise(words("long"), 6 * integers.DRAWS_TOGETHER)
    blocks = row.reshape(6, -1).astype(float)
    assert np.abs(np.corrcoef(blocks) - np.eye(6)).max() < 6 / math.sqrt(integers.DRAWS_TOGETHER)


def test_seeded_words_differ_with_purpose_client_seed_and_run() -> None:
    def first(source: Seeded, *purpose: object) -> tuple[int, ...]:
        return tuple(source.words(purpose[:-1], purpose[-1:], NOTHING)[0](2).tolist())

    found = {
        first(source, *purpose)
        for source in (SEEDED, Seeded(4, "identity"), Seeded(3, "other"))
        for purpose in ((1, "update", 7), (2, "update", 7), (1, "number", 7), (1, "update", 8))
    }
    assert len(found) == 12
    assert first(SEEDED, 1, "update", 7) == first(Seeded(3, "identity"), 1, "update", 7)
    assert [tuple(w(2).tolist()) for w in SEEDED.words((1, "update"), [7, 8], BOTH)] == [
        first(SEEDED, 1, "update", 7),
        first(SEEDED, 1, "update", 8),
    ]


def test_secure_words_and_coins_never_come_again() -> None:
    mine, yours = (SECURE.words(("same",), [1], NOTHING)[0](64) for _ in range(2))
    assert not np.intersect1d(mine, yours).size
    one, other = SECURE.words(("same",), [1, 2], BOTH)
    assert not np.intersect1d(one(64), other(64)).size
    coins = [SECURE.coins(256, 0.5, "same", 1).tolist() for _ in range(2)]
    assert coins[0] != coins[1]
    heads = int(SECURE.coins(10**5, 0.1, "many").sum())
    assert abs(heads - 10**4) < 6 * math.sqrt(9000)
    with pytest.raises(ValueError, match="whole numbers"):
        SECURE.normals(3, ("a",), [1], NOTHING)


def test_the_ground_of_a_deployment_is_a_secret_s() -> None:
    assert Secure(Seeded(5)).key("validation", 1) == Seeded(5).key("validation", 1)
    assert Secure(Seeded(5)).keys(("training",), [1, 2]) == Seeded(5).keys(("training",), [1, 2])
    assert Secure(Seeded(5)).generator("a").initial_seed() == Seeded(5).generator("a").initial_seed()


def test_opendp_draws_the_same_distribution() -> None:
    """Two samples, 20,000 and a million: each bin's share is the same (a right sampler fails once in a million)."""
    opendp = pytest.importorskip("opendp.prelude", reason="OpenDP, the oracle for the sampler, is not installed")
    opendp.enable_features("contrib")
    count = 20_000
    space = (opendp.vector_domain(opendp.atom_domain(T="i32"), count), opendp.l2_distance(T="f64"))
    theirs = np.array(opendp.m.make_gaussian(*space, scale=float(TABLE_DEVIATION))([0] * count))
    mine = integers.draws(system_words, 2**20)
    edges = np.quantile(mine, np.linspace(0, 1, 41)[1:-1])
    counts = [np.bincount(np.searchsorted(edges, one), minlength=40) for one in (theirs, mine)]
    expected = counts[1] * (count / counts[1].sum())
    statistic = float(((counts[0] - expected) ** 2 / (expected * (1 + count / 2**20))).sum())
    assert chi2.sf(statistic, 39) > 1e-6


# ---- rounding


@settings(max_examples=300, deadline=None)
@given(
    st.lists(FLOATS, min_size=1, max_size=60),
    st.floats(1e-3, 1e3),
    st.floats(1e-4, 1e3),
)
def test_no_contribution_is_longer_than_its_bound_in_whole_numbers(
    values: list[float], bound: float, noise_over_bound: float
) -> None:
    deviation = bound * noise_over_bound
    found = integers.round_contribution(np.array(values), bound, deviation)
    squares = sum(int(one) ** 2 for one in found.tolist())  # in Python's own numbers
    assert squares <= Fraction(bound) ** 2 * CLIENTS.variance / Fraction(deviation) ** 2
    if not np.isfinite(values).all():
        assert not found.any()
    elif np.linalg.norm(values) <= bound * 0.999 and noise_over_bound < 100:
        step = CLIENTS.step(deviation)
        assert np.abs(found * step - values).max() <= step * 0.51 + bound * 2e-3


def test_rounding_up_on_every_entry_is_shortened_again() -> None:
    """Entries just above a half step all round up: without the second look the norm would be 1.5 % too long."""
    entries = 5000
    bound, step = 1.0, 1 / math.sqrt(entries) / 60.51
    deviation = step * CLIENTS.deviation
    values = np.full(entries, 60.51 * step)
    limit = CLIENTS.longest(bound, deviation)
    naive = np.rint(values / step).astype(np.int64)
    assert integers.sum_of_squares(naive) > limit
    found = integers.round_contribution(values, bound, deviation)
    assert integers.sum_of_squares(found) <= limit
    assert integers.sum_of_squares(found) > 0.9 * limit


def test_what_ten_attempts_do_not_shorten_is_truncated_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "ROUNDING_ATTEMPTS", 0)
    bound, deviation = 1.0, 1.0
    limit = CLIENTS.longest(bound, deviation)
    found = integers.round_contribution(np.full(100, 0.1), bound, deviation)
    assert 0.99 * limit < integers.sum_of_squares(found) <= limit
    monkeypatch.setattr(integers.np, "trunc", lambda values: np.ceil(values) + 1)
    assert not integers.round_contribution(np.full(100, 0.1), bound, deviation).any()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e200])
def test_what_is_not_finite_contributes_nothing(poison: float) -> None:
    values = np.array([0.5, poison, 0.25])
    found = integers.round_contribution(values, 1.0, 1.0)
    assert integers.sum_of_squares(found) <= CLIENTS.longest(1.0, 1.0)
    if not math.isfinite(poison):
        assert not found.any()


@settings(deadline=None)
@given(st.lists(st.integers(-(2**52), 2**52), max_size=600))
def test_sums_of_squares_are_exact(values: list[int]) -> None:
    assert integers.sum_of_squares(np.array(values, dtype=np.int64)) == sum(one * one for one in values)


def test_sums_of_squares_are_exact_for_the_largest_numbers() -> None:
    for value in (2**52, -(2**52), 2**26 - 1, -1):
        assert integers.sum_of_squares(np.full(5000, value)) == 5000 * value**2


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.data())
def test_one_record_moves_a_rounded_sum_by_its_bound_and_a_step_for_each_entry(
    others: list[float], data: st.DataObject
) -> None:
    deviation, bound = 2.0, 1.0
    record = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=len(others), max_size=len(others))))
    record *= bound / max(bound, float(np.linalg.norm(record)))
    without, having = (integers.round_sum(np.array(others) + extra, deviation) for extra in (0.0, record))
    step = RECORDS.step(deviation)
    moved = float(np.linalg.norm((having - without) * step))
    assert moved <= (bound + step * math.sqrt(len(others))) * (1 + 1e-6)
    z = deviation / bound
    assert integers.charged_multiplier(z, len(others)) <= deviation / (bound + step * math.sqrt(len(others))) * (
        1 + 1e-9
    )


def test_a_sum_over_records_that_is_not_finite_stays_within_whole_numbers() -> None:
    found = integers.round_sum(np.array([math.nan, math.inf, -math.inf, 1e300]), 1e-9)
    assert found.tolist() == [0, integers.MAX_WHOLE, -integers.MAX_WHOLE, integers.MAX_WHOLE]


def test_noise_that_would_eat_the_signal_is_refused() -> None:
    """z sqrt(d / h) > S / 4, where s = z C / sqrt(h)."""
    entries, shares = 10**6, 45
    edge = CLIENTS.deviation / 4 * math.sqrt(shares / entries)
    for z, refused in ((edge * 0.99, False), (edge * 1.01, True)):
        limit = CLIENTS.longest(1.0, z / math.sqrt(shares))
        if refused:
            with pytest.raises(GridError, match="eat the signal"):
                integers.check_signal(limit, entries)
        else:
            integers.check_signal(limit, entries)
    with pytest.raises(GridError, match="so small that"):
        integers.round_contribution(np.zeros(3), 1.0, 1e-12)
    with pytest.raises(GridError, match="above 0"):
        CLIENTS.longest(math.inf, 1.0)


@pytest.mark.parametrize(("cohort", "z", "shares", "bits"), [(50, 5.0, 45, 32), (1000, 0.5, 900, 64), (2, 1e-6, 2, 64)])
def test_the_width_holds_the_sum(cohort: int, z: float, shares: int, bits: int) -> None:
    limit = CLIENTS.longest(1.0, z / math.sqrt(shares))
    assert integers.width(cohort, limit) == bits
    largest = cohort * CLIENTS.deviation * math.sqrt(shares) / z + 12 * CLIENTS.deviation * math.sqrt(cohort)
    assert (largest < 2**31) == (bits == 32)
    with pytest.raises(GridError, match="64 bits"):
        integers.width(10**9, integers.MAX_WHOLE**2)


# ---- epsilon


@pytest.mark.parametrize("deviation", [4.0, 8.0, 16.0])
def test_the_discrete_gaussian_is_as_near_to_a_rounded_one_as_is_said(deviation: float) -> None:
    variance = deviation**2
    numbers = np.arange(-math.ceil(9 * deviation), math.ceil(9 * deviation) + 1)
    discrete = np.exp(-(numbers**2) / (2 * variance))
    discrete /= discrete.sum()
    edges = (numbers[:, None] + [-0.5, 0.5]) / math.sqrt(variance - 1 / 12)
    low = np.where(numbers[:, None] > 0, -edges[:, ::-1], edges)  # differences of small numbers, not of ones
    rounded = norm.cdf(low[:, 1]) - norm.cdf(low[:, 0])
    assert 0.5 * np.abs(discrete - rounded).sum() < 4.87e-4 / variance**2 * 1.02
    common = np.abs(numbers) < 5 * deviation
    assert (discrete / rounded)[common].min() > 1 - 2.1e-3 / variance**2 * 1.02


def test_the_gap_is_the_documented_one() -> None:
    """d = 1e6, T = 100, h = 40: 2e-7 on epsilon, 3e-10 on delta."""
    gap = Gap(10**6 * 100, 40)
    assert gap.variance == 40 * 2**24 * 257
    assert 1e-7 < gap.epsilon < 2e-7
    assert 2e-10 < gap.delta(8.0) < 3e-10
    assert gap.delta(100.0) > gap.delta(8.0)
    assert gap.multiplier(5.0) * gap.mu(1 / 5.0) == pytest.approx(1)
    assert gap.multiplier(5.0) < 5.0


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-5), (2.0, 1e-6), (8.0, 1e-5)])
def test_epsilon_has_the_gap_s_delta_subtracted_first(mu: float, delta: float) -> None:
    gap = Gap(10**6, 10)
    spent = gap.spent(lambda left: epsilon_of(gap.mu(mu), left), delta)
    bare = epsilon_of(mu, delta)
    assert bare < spent < bare * 1.001
    by_hand = epsilon_of(gap.mu(mu), delta - gap.delta(spent)) + gap.epsilon
    assert spent == pytest.approx(by_hand, rel=1e-9)
    more = Gap(10**9, 10).spent(lambda left: epsilon_of(Gap(10**9, 10).mu(mu), left), delta)
    assert more > spent


def test_where_the_gap_eats_delta_no_epsilon_holds() -> None:
    gap = Gap(10**9, 1)
    assert gap.spent(lambda left: epsilon_of(1.0, left), gap.delta(0.0)) == math.inf
    assert math.isfinite(gap.spent(lambda left: epsilon_of(1.0, left), gap.delta(0.0) * 1e4))
    assert gap.spent(lambda left: 200.0, 1e-5) == math.inf  # e^200 times what lies outside of the table
    assert gap.spent(lambda left: math.inf, 1e-5) == math.inf
    assert gap.spent(lambda left: 0.0, 1e-5) == gap.epsilon


def test_zcdp_alone_is_never_below_what_is_printed() -> None:
    """Discrete Gaussians satisfy rho-zCDP with rho = mu^2 / 2 exactly (Canonne, Kamath, Steinke 2020)."""
    for mu in (0.3, 1.0, 3.0):
        gap, delta = Gap(10**6, 10), 1e-5
        spent = gap.spent(lambda left, mu=mu, gap=gap: epsilon_of(gap.mu(mu), left), delta)
        rho = mu**2 / 2
        orders = np.exp(np.linspace(math.log(1.01), math.log(300), 4000))
        conversion = rho * orders + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        assert spent <= conversion.min() + gap.epsilon


def test_a_sum_s_charge_shrinks_with_the_number_of_entries() -> None:
    assert integers.charged_multiplier(1.0, 2**20) == pytest.approx(1 / (1 + 2**10 / RECORDS.deviation))
    assert integers.charged_multiplier(5.0, 10**6) < integers.charged_multiplier(5.0, 10) < 5.0
