"""Simulated randomness: no draw is used twice, keys count with all their bits, tails are right."""

import math
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, chisquare, kstest, norm, poisson
from torch import Tensor

from sordino.privacy import noise
from sordino.privacy.mechanism import MECHANISMS, MechanismName
from sordino.privacy.noise import KEY_BYTES, PAIRS_OF_A_ROW, RARE, Covered, Seeded, Source
from sordino.privacy.release import Cover
from sordino.privacy.unit import Unit

SOURCE = Seeded(3, "identity", repeats=True)
VALUED = Seeded(3, "identity")
"""A source whose draws depend on what they cover, as it is unless somebody says that code repeats itself."""
PURPOSE = (5, "local", "update", 2)
"""The question's number, the step, the release and the round, as callers name a draw."""
OTHERS = {
    "seed": (Seeded(4, "identity", repeats=True), PURPOSE, 7),
    "identity": (Seeded(3, "other", repeats=True), PURPOSE, 7),
    "question": (SOURCE, (6, "local", "update", 2), 7),
    "step": (SOURCE, (5, "again", "update", 2), 7),
    "release": (SOURCE, (5, "local", "number", 2), 7),
    "round": (SOURCE, (5, "local", "update", 3), 7),
    "client": (SOURCE, PURPOSE, 8),
}
"""Draws that differ from the first one in one respect."""
PARTS = st.one_of(st.integers(), st.text(), st.sampled_from(["a", "b", "a/b", "1", "i1;", "1:a", "11:", ";"]))


def normals(source: Source, size: int, purpose: tuple, clients: Sequence[int], rows: Tensor | None = None) -> Tensor:
    """Noise for values that are all zero, or for `rows`."""
    return source.normals(size, purpose, clients, Covered(torch.zeros(len(clients), 1) if rows is None else rows, []))


def normal(source: Source, size: int, *purpose: object) -> Tensor:
    """Normal numbers for one client, which is named last."""
    return normals(source, size, purpose[:-1], purpose[-1:])[0]  # type: ignore[arg-type]


def words_of(key: bytes, count: int) -> np.ndarray:
    return np.asarray(noise.stream(key).random_raw(count))


# ---- what a draw depends on


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_two_purposes_never_have_the_same_encoding(first: list, second: list) -> None:
    together = [b"".join(map(noise.encode, purpose)) for purpose in (first, second)]
    assert (together[0] == together[1]) == (first == second)


ALIKE = [
    (("a/b",), ("a", "b")),
    (("1",), (1,)),
    (("a", "b"), ("ab",)),
    ((1, 1), (11,)),
    ((1, "xxi1i2i3i4i5"), (11, "xx", 1, 2, 3, 4, 5)),  # the same if numbers did not say where they end
]


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_purposes_that_read_alike_have_different_keys(first: tuple, second: tuple) -> None:
    assert SOURCE.key(*first) != SOURCE.key(*second)
    assert not torch.equal(normal(SOURCE, 8, *first), normal(SOURCE, 8, *second))


def test_a_client_s_number_counts_whatever_its_type() -> None:
    assert SOURCE.key("turns", np.int64(7)) == SOURCE.key("turns", 7)
    assert torch.equal(normals(SOURCE, 8, PURPOSE, np.arange(7, 8)), normals(SOURCE, 8, PURPOSE, [7]))


def test_what_is_neither_text_nor_whole_number_names_no_draw() -> None:
    with pytest.raises(TypeError, match=r"texts and whole numbers, not by 0\.5"):
        SOURCE.key("turns", 0.5)


@pytest.mark.parametrize("respect", OTHERS)
def test_draws_that_differ_in_one_respect_share_nothing(respect: str) -> None:
    other, purpose, client = OTHERS[respect]
    count = 20_000
    mine, theirs = normals(SOURCE, count, PURPOSE, [7])[0], normals(other, count, purpose, [client])[0]
    assert int((mine == theirs).sum()) < 10
    # Correlations of independent numbers, of their sizes and of coins: six deviations are passed once in 10^8.
    limit = 6 / math.sqrt(count)
    assert abs(float(torch.corrcoef(torch.stack([mine, theirs]))[0, 1])) < limit
    assert abs(float(torch.corrcoef(torch.stack([mine.abs(), theirs.abs()]))[0, 1])) < limit
    coins = torch.stack([SOURCE.coins(count, 0.5, *PURPOSE, 7), other.coins(count, 0.5, *purpose, client)])
    assert abs(float(torch.corrcoef(coins.float())[0, 1])) < limit


def test_clients_of_one_call_share_nothing() -> None:
    rows = normals(SOURCE, 1000, PURPOSE, range(200)).double()
    correlations = torch.corrcoef(rows) - torch.eye(200)
    assert float(correlations.abs().max()) < 8 / math.sqrt(1000)  # 19,900 pairs: passed once in 10^10
    assert float(torch.corrcoef(rows.abs()).fill_diagonal_(0).abs().max()) < 8 / math.sqrt(1000)


def test_the_ground_depends_on_the_seed_alone() -> None:
    mine, theirs, seed = Seeded(3, "identity"), Seeded(3), Seeded(4, "identity")
    assert mine.keys(("training", "local"), range(9)) == theirs.keys(("training", "local"), range(9))
    assert mine.keys(("training", "local"), range(9)) != seed.keys(("training", "local"), range(9))
    assert mine.key("turns", 1) == mine.keys(("turns",), [1])[0]
    draws = [torch.rand(4, generator=source.generator("server", 1)) for source in (mine, theirs, seed)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert 0 <= mine.key("turns", 1) < 2**63


@pytest.mark.parametrize(
    "draw", [lambda s: normals(s, 2, ("a",), [1]), lambda s: normal(s, 2, "a"), lambda s: s.coins(2, 0.5, "a")]
)
def test_without_an_identity_there_is_neither_noise_nor_a_coin(draw: Callable[[Seeded], object]) -> None:
    with pytest.raises(ValueError, match="identity"):
        draw(Seeded(3))


def test_noise_and_coins_of_one_purpose_have_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    used, original = [], noise.stream
    monkeypatch.setattr(noise, "stream", lambda key: used.append(key) or original(key))
    normal(SOURCE, 2, *PURPOSE, 7)
    SOURCE.coins(2, 0.5, *PURPOSE, 7)
    assert len(set(used)) == 2


@pytest.mark.parametrize(
    "size",
    [1, 2, 3, 15, 16, 17, 63, 64, 65, 1001, 2 * PAIRS_OF_A_ROW - 1, 2 * PAIRS_OF_A_ROW + 1, 4 * PAIRS_OF_A_ROW + 3],
)
def test_a_client_s_noise_is_its_own_whoever_is_drawn_with_it(size: int) -> None:
    clients = [9, 0, 4, 2, 30]
    together = normals(SOURCE, size, PURPOSE, clients)
    assert together.shape == (5, size)
    assert together.dtype == torch.float32
    for row, client in zip(together, clients, strict=True):
        assert torch.equal(row, normals(SOURCE, size, PURPOSE, [client])[0])
        assert torch.equal(row, normal(pickle.loads(pickle.dumps(SOURCE)), size, *PURPOSE, client))
    assert torch.equal(together.flip(0), normals(SOURCE, size, PURPOSE, clients[::-1]))


def test_nobody_and_nothing_can_be_drawn() -> None:
    assert normals(SOURCE, 4, PURPOSE, []).shape == (0, 4)
    assert normals(SOURCE, 0, PURPOSE, [1, 2]).shape == (2, 0)
    assert SOURCE.coins(0, 0.5, *PURPOSE).shape == (0,)


def test_the_numbers_of_a_long_row_are_all_different() -> None:
    # A block drawn a second time would repeat thousands; in float32 a few of 10^5 numbers are equal by chance.
    row = normal(SOURCE, 6 * PAIRS_OF_A_ROW + 1, *PURPOSE)
    assert len(row.unique()) > 0.99 * len(row)


# ---- keys


@pytest.mark.slow
@pytest.mark.parametrize("bits", [18, 20])
def test_no_two_of_many_keys_give_the_same_draw(bits: int) -> None:
    # Keys of 32 bits would collide 2^(2 bits - 33) times: eight times among 2^18. By chance it happens once in 2^26.
    first, second = normals(SOURCE, 4, PURPOSE, range(2**bits)).numpy().view(np.uint64).T
    assert len(np.unique(first * np.uint64(0x9E3779B97F4A7C15) + second)) == 2**bits


def test_every_bit_of_a_key_changes_the_first_word() -> None:
    # torch's generator hears the lowest 32 of them only.
    key = int.from_bytes(bytes(range(KEY_BYTES)), "little")
    keys = [key, *(key ^ (1 << bit) for bit in range(8 * KEY_BYTES))]
    first = {int(words_of(k.to_bytes(KEY_BYTES, "little"), 1)[0]) for k in keys}
    assert len(first) == 1 + 192


def test_a_generator_that_is_seeded_otherwise_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for 4 words"):
        np.random.PCG64DXSM(noise._Key(bytes(KEY_BYTES)))


# ---- the bulk


def test_draws_are_box_and_muller_s_to_within_rounding() -> None:
    count, key = 2**19, bytes(range(KEY_BYTES))
    bits = words_of(key, count).view(np.uint32).reshape(1, -1)
    cosines, sines = noise.box_muller(bits, [key], 0)
    p, angle = (bits[0, :count] + 0.5) / 2**32, bits[0, count:] * (2 * math.pi / 2**32)
    common = bits[0, :count] >= RARE
    assert common.sum() < count
    radius = np.sqrt(-2 * np.log(p))
    moved = np.maximum(np.abs(cosines[0] - radius * np.cos(angle)), np.abs(sines[0] - radius * np.sin(angle)))
    assert (moved < 1e-6 * (radius + 1 / radius))[common].all()


def test_numbers_fall_into_the_bins_of_a_gaussian() -> None:
    count, bins = 2**22, 1000
    row = normal(SOURCE, count, *PURPOSE).double().numpy()
    assert not np.isnan(row).any()
    for half in (row[: count // 2], row[count // 2 :]):
        edges = norm.ppf(np.linspace(0, 1, bins + 1))
        assert chisquare(np.histogram(half, edges)[0]).pvalue > 1e-6
        low, high = chi2.ppf([5e-7, 1 - 5e-7], count // 2)
        assert low < (half**2).sum() < high
    pair = np.stack([row[: count // 2], row[count // 2 :]])
    for shape in (pair, np.abs(pair), pair**2):  # six deviations: passed once in 10^8
        assert abs(np.corrcoef(shape)[0, 1]) < 6 / math.sqrt(count // 2)
    assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < 6 / math.sqrt(count)


# ---- tails


def test_the_largest_number_lies_beyond_fourteen_deviations() -> None:
    assert noise.rare_radius(0, 0) == pytest.approx(math.sqrt(320 * math.log(2)))
    assert noise.rare_radius(0, 0) > 14.8


def test_rare_radii_meet_the_common_ones() -> None:
    edge = math.sqrt(2 * math.log(2**16))
    assert noise.rare_radius(RARE - 1, 2**128 - 1) == pytest.approx(edge, rel=1e-12)
    radius = noise.radii(np.array([[RARE]], dtype=np.uint32), [b""], 0)
    assert float(radius[0, 0]) == pytest.approx(edge, rel=1e-6)


@settings(deadline=None)
@given(st.integers(0, RARE - 1), st.integers(0, 2**128 - 1))
def test_a_rare_radius_is_the_quantile_of_its_probability(word: int, more: int) -> None:
    probability = (word + (more + 1) / 2**128) / 2**32
    # chi-squared with two degrees of freedom is the square of R.
    assert chi2.sf(noise.rare_radius(word, more) ** 2, 2) == pytest.approx(probability, rel=1e-10)


@pytest.mark.parametrize("word", [0, 1, 2])
def test_rare_words_spread_over_the_whole_of_their_share(word: int) -> None:
    """4,000 places and keys: the fraction that a radius adds to its word is uniform (Kolmogorov and Smirnov)."""
    keys = [bytes([number]) * KEY_BYTES for number in range(40)]
    radius = noise.radii(np.full((40, 100), word, dtype=np.uint32), keys, 17).astype(np.float64)
    fractions = np.exp(-(radius**2) / 2) * 2**32 - word
    assert kstest(fractions.ravel(), "uniform").pvalue > 1e-6
    assert (radius.max() > 7.6) == (word == 0)  # 32 bits alone end at 6.7


def test_more_bits_differ_with_key_and_place_and_are_all_used() -> None:
    found = [noise.more_bits(bytes([key]) * KEY_BYTES, place) for key in range(16) for place in range(256)]
    assert len(set(found)) == len(found)
    for bit in range(noise.MORE_BITS):  # 4,096 coins each: six deviations are passed once in 10^8
        assert abs(sum(number >> bit & 1 for number in found) - 2048) < 6 * 32


def test_rare_pairs_of_a_draw_get_their_more_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quarter of all pairs called rare nothing else may change, and places count from the row's beginning."""
    monkeypatch.setattr(noise, "PAIRS_OF_A_ROW", 64)
    plain = normals(SOURCE, 300, PURPOSE, [1, 2])
    monkeypatch.setattr(noise, "RARE", 2**30)
    asked = []
    original = noise.more_bits
    monkeypatch.setattr(noise, "more_bits", lambda key, place: asked.append((key, place)) or original(key, place))
    assert torch.allclose(normals(SOURCE, 300, PURPOSE, [1, 2]), plain, atol=1e-5)
    assert len(asked) == len(set(asked)) > 40
    assert len({key for key, _ in asked}) == 2
    assert {place for _, place in asked} <= set(range(150))
    assert max(place for _, place in asked) > 128


@pytest.mark.slow
def test_as_many_numbers_lie_far_out_as_should() -> None:
    """A thousand million draws; each count within the Poisson distribution's 1 - 1e-6."""
    size, calls = 10**7, 100
    limits = np.array([4.0, 4.5, 5.0, 5.5, 6.0])
    counts = np.zeros(5)
    for call in range(calls):
        row = normal(SOURCE, size, "far out", call).abs_()
        far = row[row > 4].numpy()
        counts += (far[:, None] > limits).sum(axis=0)
    expected = size * calls * 2 * norm.sf(limits)
    low, high = poisson.ppf(5e-7, expected), poisson.ppf(1 - 5e-7, expected)
    assert ((low <= counts) & (counts <= high)).all(), (counts, expected)


# ---- coins


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.9])
def test_coins_are_true_as_often_as_their_rate_says(rate: float) -> None:
    count = 10**6
    heads = int(SOURCE.coins(count, rate, *PURPOSE, 7).sum())
    low, high = binom.ppf([5e-7, 1 - 5e-7], count, rate)
    assert low <= heads <= high


def test_coins_of_rate_one_are_all_true_and_of_rate_zero_false() -> None:
    assert SOURCE.coins(10**5, 1.0, *PURPOSE).all()
    assert not SOURCE.coins(10**5, 0.0, *PURPOSE).any()


def test_coins_use_fifty_three_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Given:
        def random_raw(self, count: int) -> np.ndarray:
            return np.array([0, 2**24 - 2**11, 2**24, 2**64 - 1], dtype=np.uint64)

    monkeypatch.setattr(noise, "stream", lambda key: Given())
    assert SOURCE.coins(4, 2.0**-40, *PURPOSE).tolist() == [True, True, False, False]
    assert SOURCE.coins(4, 1.0, *PURPOSE).tolist() == [True] * 4
    assert SOURCE.coins(4, 1 - 2.0**-53, *PURPOSE).tolist() == [True, True, True, False]


# ---- what a draw covers


KINDS = [torch.float32, torch.float64, torch.int64]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.data())
def test_a_change_of_one_bit_anywhere_in_a_row_changes_its_draw_and_no_other(
    kind: torch.dtype, width: int, data: st.DataObject
) -> None:
    rows = torch.frombuffer(bytearray(range(256)) * 4, dtype=kind)[: 3 * width].reshape(-1, width).clone()
    place, byte, bit = (data.draw(st.integers(0, most)) for most in (len(rows) - 1, width * kind.itemsize - 1, 7))
    changed = rows.clone()
    changed.view(torch.uint8)[place, byte] ^= 1 << bit
    before, after = (normals(VALUED, 8, PURPOSE, range(len(rows)), one) for one in (rows, changed))
    assert [not torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [
        row == place for row in range(len(rows))
    ]


def test_every_bit_of_a_digest_changes_the_key() -> None:
    digest = int.from_bytes(bytes(range(noise.DIGEST_BYTES)), "big")
    digests = [digest, *(digest ^ (1 << bit) for bit in range(8 * noise.DIGEST_BYTES))]
    covered = [one.to_bytes(noise.DIGEST_BYTES, "big") for one in digests]
    keys = [VALUED._secret(b"noise", PURPOSE, [7], [one])[0] for one in covered]
    assert len(set(keys)) == 1 + 8 * noise.DIGEST_BYTES >= 1 + 128


SIGNS = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 3.0, -4.0], [-1.0, -2.0, -3.0, -4.0], [0.0] * 4, [-0.0] * 4])


def test_values_that_differ_in_signs_alone_share_nothing() -> None:
    """Also zeros, and changes that cancel each other in sums of whole words."""
    drawn = {tuple(normals(VALUED, 2, PURPOSE, [7], row.unsqueeze(0))[0].tolist()) for row in SIGNS}
    assert len(drawn) == len(SIGNS)


def test_values_of_another_type_or_shape_share_nothing() -> None:
    rows = torch.zeros(1, 4)
    others = [rows.double(), rows[:, :3], rows.reshape(1, 2, 2), rows.view(torch.int32), torch.zeros(1, 0)]
    drawn = {tuple(normals(VALUED, 2, PURPOSE, [7], row)[0].tolist()) for row in [rows, *others]}
    assert len(drawn) == 1 + len(others)


def test_a_draw_depends_neither_on_who_else_is_drawn_nor_on_where_values_lie() -> None:
    rows = torch.arange(20.0).reshape(4, 5)
    together = normals(VALUED, 9, PURPOSE, [3, 1, 4, 2], rows)
    for place, client in enumerate([3, 1, 4, 2]):
        alone = rows.t().contiguous().t()[place : place + 1]
        assert torch.equal(together[place], normals(VALUED, 9, PURPOSE, [client], alone)[0])
    purposes = [(*PURPOSE, client) for client in (3, 1, 4, 2)]
    assert torch.equal(together, VALUED.rows(9, purposes, Covered(rows, [])))


def test_values_count_beside_all_other_respects() -> None:
    rows = torch.ones(1, 3)
    first = normals(VALUED, 8, PURPOSE, [7], rows)
    for source, purpose, client in OTHERS.values():
        other = Seeded(source.seed, source.identity)
        assert not torch.equal(first, normals(other, 8, purpose, [client], rows))


@pytest.mark.parametrize("kind", MECHANISMS)
def test_the_same_value_in_noise_of_another_size_or_at_other_places_has_another_draw(kind: MechanismName) -> None:
    """Knowing s and t gives v from v + s n and v + t n with one n."""
    rows, wide = torch.zeros(1, 4), torch.ones(1, 1, dtype=torch.float64)
    every = Cover(wide, 10 * wide, [4])
    covers: list[Cover] = [
        every,
        Cover(2 * wide, 10 * wide, [4]),
        Cover(wide, 11 * wide, [4]),
        Cover(wide.expand(1, 2), 10 * wide.expand(1, 2), [2, 2]),
        Cover(wide.expand(1, 2), 10 * wide.expand(1, 2), [1, 3]),
        Cover(wide, 10 * wide, [4], places=torch.tensor([0, 1])),
        Cover(wide, 10 * wide, [4], places=torch.tensor([0, 2])),
        Cover(wide, 10 * wide, [4], at=torch.tensor([[True, True, False, False]])),
        Cover(wide, 10 * wide, [4], at=torch.tensor([[True, False, True, False]])),
        Cover(wide, 10 * wide, [4], mirrored=True),
        Cover(wide, 10 * wide, [4], Unit.RECORD),
    ]
    firsts = set()
    for cover in covers:
        sent = MECHANISMS[kind].noised(rows.clone(), cover, VALUED, (5, "update"), [7])
        read = MECHANISMS[kind].read(sent, cover)[0, 0] / cover.deviations[0, 0]
        firsts.add(round(float(read), 6))
    assert len(firsts) == len(covers)
    again = MECHANISMS[kind].noised(rows.clone(), every, VALUED, (5, "update"), [7])
    assert torch.equal(again, MECHANISMS[kind].noised(rows.clone(), every, VALUED, (5, "update"), [7]))


@pytest.mark.parametrize("kind", MECHANISMS)
def test_sums_over_records_have_draws_of_their_own_value_and_noise(kind: MechanismName) -> None:
    mechanism, purposes = MECHANISMS[kind], [("gradient", 0, client, 0) for client in (1, 2)]
    totals, deviations = torch.ones(2, 6), [1.0, 2.0]

    def noise_on(values: Tensor, sizes: list[float]) -> Tensor:
        sent = mechanism.noised_sums(values.clone(), sizes, VALUED, purposes)
        return (sent - values) / torch.tensor(sizes).unsqueeze(1)

    first = noise_on(totals, deviations)
    assert torch.equal(first, noise_on(totals, deviations))
    for row, purpose, size in zip(first, purposes, deviations, strict=True):
        assert torch.equal(row, (mechanism.noised_sum(torch.ones(6), size, VALUED, purpose) - 1) / size)
        each = mechanism.noised_sum(torch.ones(6), torch.full((6,), size).double(), VALUED, purpose)
        assert torch.isfinite(each).all()
    moved = noise_on(torch.cat([totals[:1], totals[1:] + 1e-3]), deviations)
    assert torch.equal(first[0], moved[0])
    assert not torch.allclose(first[1], moved[1], atol=0.1)
    larger = noise_on(totals, [1.0, 4.0])
    assert torch.equal(first[0], larger[0])
    assert not torch.allclose(first[1], larger[1], atol=0.1)


def test_what_stands_for_draws_is_a_function_of_their_values_in_any_order() -> None:
    rows = torch.arange(6.0).reshape(3, 2)

    def drawn(source: Seeded, *calls: tuple[list[int], Tensor]) -> int:
        for clients, values in calls:
            normals(source, 4, PURPOSE, clients, values)
        return source.take_drawn()

    VALUED.take_drawn()
    whole = drawn(VALUED, ([1, 2, 3], rows))
    assert whole == drawn(VALUED, ([3], rows[2:]), ([1, 2], rows[:2])) != 0
    assert whole == drawn(VALUED, ([1, 2], rows[:2])) ^ drawn(VALUED, ([3], rows[2:]))
    assert whole != drawn(VALUED, ([1, 2, 3], rows + 1e-6))
    assert VALUED.take_drawn() == 0, "it is told once"
    assert drawn(SOURCE, ([1, 2, 3], rows)) == 0, "draws do not depend on values"


# ---- nonces


def test_coins_of_runs_with_other_nonces_share_nothing() -> None:
    one, other, none = (Seeded(3, "identity", nonce=nonce) for nonce in (b"a" * 16, b"b" * 16, b""))
    count = 20_000
    coins = torch.stack([source.coins(count, 0.5, *PURPOSE, 7) for source in (one, other, none)]).float()
    assert float((torch.corrcoef(coins) - torch.eye(3)).abs().max()) < 6 / math.sqrt(count)
    assert torch.equal(one.coins(9, 0.5, *PURPOSE), Seeded(3, "identity", nonce=b"a" * 16).coins(9, 0.5, *PURPOSE))
    assert torch.equal(none.coins(9, 0.5, *PURPOSE), SOURCE.coins(9, 0.5, *PURPOSE))


def test_a_nonce_comes_from_the_operating_system() -> None:
    nonces = {noise.new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert {len(one) for one in nonces} == {noise.NONCE_BYTES}
