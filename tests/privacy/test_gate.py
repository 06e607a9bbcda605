"""The only exit: what it bounds, how much noise it adds, that no draw is used twice."""

import copy
import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from sordino.federation.message import Each
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.gate import Gate, Passed, UndeclaredReleaseError, check_declared
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Average, Bare, Derived, Number, Public, ReleaseError, Update, check_steps, due
from sordino.privacy.unit import Unit

SILENT = Noise(multiplier=1e-30, protect_from="server", minimum_cohort=1)


def gate(noise: Noise, seed: int = 0, identity: str = "run") -> Gate:
    return Gate(Allowance(noise), Seeded(seed, identity))


def passed(
    releases: dict, wanted: dict, noise: Noise, clients: int, question: int = 0, seed: int = 0, clip: float = 1.0
) -> Passed:
    width = max((value.shape[1] for value in wanted.values()), default=1)
    public = Public({"clip": clip}, range(clients), layers=[width])
    return gate(noise, seed).passes(releases, wanted, question, public)


def public_of(width: int, clients: int = 1, **message: object) -> Public:
    return Public(message, range(clients), layers=[width])


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40),
    st.floats(1e-3, 1e3),
)
def test_the_norm_after_clipping_is_at_most_the_threshold(values: list[float], clip: float) -> None:
    bounded = Update("clip").bounded(torch.tensor([values]), public_of(len(values), clip=clip))
    assert bounded.rows.double().norm() <= clip


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40),
    st.floats(1e-3, 1e3),
)
def test_the_norm_after_normalising_is_at_most_the_threshold_and_close_to_it(values: list[float], clip: float) -> None:
    rows = torch.tensor([values])
    found = Update("clip", normalised=True).bounded(rows, public_of(len(values), clip=clip)).rows.double()
    assert found.norm() <= clip
    if rows.double().norm() > 1e-29:
        assert found.norm() >= clip * (1 - 1e-5)
        cosine = (found * rows.double()).sum() / found.norm() / rows.double().norm()
        assert cosine >= 1 - 1e-5


def test_normalised_vectors_cost_and_carry_what_clipped_ones_do() -> None:
    """The threshold is the sensitivity of both; layers and masks are kept; zeros and infinities add nothing."""
    allowance, public = Allowance(Noise(2.0, "outsider", 3)), public_of(4, 3, clip=0.5)
    clipped, scaled = Update("clip"), Update("clip", normalised=True)
    assert torch.equal(clipped.deviation(allowance, public), scaled.deviation(allowance, public))
    assert (clipped.charge(allowance, public).noise == scaled.charge(allowance, public).noise).all()
    assert scaled.charge(allowance, public).sensitivity.tolist() == [0.5]
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [torch.inf, 1.0, 0.0, 0.0], [0.003, 0.004, 0.0, 0.0]])
    bounded = scaled.bounded(rows, public)
    assert bounded.rejected == 1
    assert torch.allclose(bounded.rows, torch.tensor([[0.0] * 4, [0.0] * 4, [0.3, 0.4, 0.0, 0.0]]), atol=1e-6)
    masked = Public({"mask": torch.tensor([1.0, 0.0, 1.0, 0.0])}, [0], layers=[4])
    alone = Update(1.0, at="mask", normalised=True).bounded(torch.tensor([[3.0, 9.0, 4.0, 9.0]]), masked).rows
    assert torch.allclose(alone, torch.tensor([[0.6, 0.0, 0.8, 0.0]]), atol=1e-6)
    parts = Public({"clip": torch.tensor([1.0, 2.0])}, [0], layers=[2, 2])
    layered = Update("clip", layered=True, normalised=True).bounded(torch.tensor([[0.3, 0.4, 0.03, 0.04]]), parts).rows
    assert torch.allclose(layered, torch.tensor([[0.6, 0.8, 1.2, 1.6]]), atol=1e-5)


def test_short_vectors_are_left_alone_and_long_ones_keep_their_direction() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0]])
    bounded = Update(1.0).bounded(rows, public_of(2, 2)).rows
    assert torch.equal(bounded[0], rows[0])
    assert torch.allclose(bounded[1], torch.tensor([0.6, 0.8]), atol=1e-6)


def test_a_vector_for_several_models_is_bounded_as_one() -> None:
    """Three parts of two entries: the whole has a norm of at most one, and noise is everywhere."""
    release, public = Update(1.0, times=3), public_of(2)
    rows = torch.tensor([[0.0, 0.0, 30.0, 40.0, 0.0, 0.0]])
    assert torch.allclose(release.bounded(rows, public).rows, rows / 50, atol=1e-6)
    assert release.bounded(torch.full((1, 6), 9.0), public).rows.norm() == pytest.approx(1)
    drawn = gate(Noise(2.0, "server", 1)).passes({"update": release}, {"update": rows}, 0, public).values["update"]
    assert (drawn[0] != release.bounded(rows, public).rows[0]).all()
    with pytest.raises(ReleaseError, match="6 entries"):
        release.opened(torch.zeros(1, 2), public)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_zero_and_is_counted(poison: float) -> None:
    rows = torch.tensor([[1.0, poison], [0.1, 0.2], [poison, poison]])
    out = passed({"update": Update("clip")}, {"update": rows}, SILENT, 3)
    assert out.rejected == 2
    assert out.values["update"][0].abs().max() < 1e-25
    assert torch.allclose(out.values["update"][1], rows[1])


def test_numbers_are_held_and_centred() -> None:
    rows = torch.tensor([[-5.0], [0.25], [9.0], [math.nan]])
    out = passed({"below": Number(0.0, 1.0, 1.0)}, {"below": rows}, SILENT, 4)
    assert out.values["below"].flatten().tolist() == pytest.approx([-0.5, -0.25, 0.5, 0.0])
    assert out.rejected == 1
    assert Number(0.0, 1.0, 1.0).sensitivity() == 0.5


def within(residuals: torch.Tensor, deviation: float) -> bool:
    """Whether the variance fits, at a confidence of 1 - 1e-6."""
    statistic = float((residuals.double() / deviation).square().sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], residuals.numel())
    return bool(low < statistic < high)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (Noise(2.0, "server", 4), 2.0 * 3.0),
        (Noise(2.0, "outsider", 4), 2.0 * 3.0 / math.sqrt(4)),
        (Noise(2.0, "outsider", 4, colluders=3), 2.0 * 3.0),
    ],
)
def test_noise_has_the_stated_deviation(noise: Noise, expected: float) -> None:
    out = passed({"update": Update("clip")}, {"update": torch.zeros(4, 20_000)}, noise, 4, clip=3.0)
    residuals = out.values["update"]
    assert within(residuals, expected)
    assert not within(residuals, expected * 0.97)
    assert not within(residuals, expected / 0.97)


def test_the_sum_of_the_cohort_carries_the_whole_noise() -> None:
    out = passed({"update": Update("clip")}, {"update": torch.zeros(9, 50_000)}, Noise(1.5, "outsider", 9), 9)
    assert within(out.values["update"].sum(dim=0), 1.5)


def test_releases_of_one_round_cost_one_gaussian() -> None:
    # Shares 0.9 and 0.1 of a round with multiplier 2: 1/z^2 adds up to 1/4.
    releases = {"update": Update("clip", share=0.9), "below": Number(0.0, 1.0, share=0.1)}
    allowance, public = Allowance(Noise(2.0, "server", 1)), public_of(10, clip=5.0)
    charges = [release.charge(allowance, public) for release in releases.values()]
    assert sum(float((charge.sensitivity[0] / charge.noise[0, 2]) ** 2) for charge in charges) == pytest.approx(1 / 4)


LAYERS = [900, 90, 10]
CLIPS = torch.tensor([0.4, 0.1, 0.3])


@pytest.mark.parametrize("spread", ["energy", "proportional"])
def test_layered_noise_costs_what_one_gaussian_costs(spread: str) -> None:
    """mu^2 summed over layers from the noise that is really drawn is 1/z^2, whatever the thresholds are."""
    z, release = 2.0, Update("clip", layered=True, spread=spread)
    public, allowance = Public({"clip": CLIPS}, range(400), layers=LAYERS), Allowance(Noise(z, "server", 1))
    wanted = {"update": torch.zeros(400, 1000)}
    noise = Gate(allowance, Seeded(0, "run")).passes({"update": release}, wanted, 0, public).values["update"].double()
    drawn = [part.square().mean() for part in noise.split(LAYERS, dim=1)]
    mu2 = sum(float(c.double() ** 2 / variance) for c, variance in zip(CLIPS, drawn, strict=True))
    assert mu2 == pytest.approx(1 / z**2, rel=0.06)  # 4000 draws in the smallest layer: 2.2 % standard error
    charge = release.charge(allowance, public)
    assert float((charge.sensitivity[0] / charge.noise[0, 2]) ** 2) == pytest.approx(1 / z**2, rel=1e-12)
    assert charge.sensitivity == pytest.approx(float(CLIPS.double().norm()))


def test_spread_by_energy_is_the_least_noise() -> None:
    public, allowance = Public({"clip": CLIPS}, layers=LAYERS), Allowance(Noise(1.0, "server", 1))
    energy = {
        spread: float(Update("clip", layered=True, spread=spread).deviation(allowance, public).double().square().sum())
        for spread in ("energy", "proportional")
    }
    weight = sum(float(c) * math.sqrt(d) for c, d in zip(CLIPS, LAYERS, strict=True))
    assert energy["energy"] == pytest.approx(weight**2, rel=1e-6)
    assert energy["energy"] < energy["proportional"]
    flat = float(Update(float(CLIPS.norm())).deviation(allowance, public).square()) * 1000
    assert energy["energy"] < flat


def test_each_layer_is_held_to_its_own_threshold() -> None:
    public = Public({"clip": CLIPS}, range(3), layers=LAYERS)
    rows = torch.randn(3, 1000) * 5
    bounded = Update("clip", layered=True).bounded(rows, public).rows
    for part, clip in zip(bounded.split(LAYERS, dim=1), CLIPS, strict=True):
        assert (part.double().norm(dim=1) <= float(clip)).all()
        assert part.double().norm(dim=1).min() == pytest.approx(float(clip), rel=1e-5)


@pytest.mark.parametrize("told", ["state", "message"])
def test_each_client_is_held_to_its_own_threshold(told: str) -> None:
    own = torch.tensor([[1.0], [2.0]])
    message, states = ({}, {"mine": own}) if told == "state" else ({"mine": Each(own)}, {})
    public = Public(message, range(2), states, layers=[50_000])
    bounded = Update("mine").bounded(torch.full((2, 50_000), 9.0), public).rows
    assert bounded.double().norm(dim=1).tolist() == pytest.approx([1.0, 2.0], rel=1e-5)
    wanted = {"update": torch.zeros(2, 50_000)}
    out = gate(Noise(1.0, "server", 1)).passes({"update": Update("mine")}, wanted, 0, public)
    assert within(out.values["update"][0], 1.0)
    assert within(out.values["update"][1], 2.0)


def test_nothing_leaves_where_a_mask_is_zero() -> None:
    shared = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    releases = {"update": Update(1.0, at="shared"), "shared": Derived("shared", bits=1)}
    public = Public({}, range(2), {"shared": shared}, layers=[4])
    out = gate(Noise(1.0, "server", 1)).passes(releases, {"update": torch.ones(2, 4)}, 0, public)
    assert ((out.values["update"] != 0) == (shared > 0)).all()
    assert torch.equal(out.values["shared"], shared)
    assert out.bytes == 2 * (4 * 2 + 1), "two floats and four bits for each client"


def test_a_mask_for_all_costs_no_noise_where_nothing_leaves() -> None:
    """A part that is personal at every client, as in FedPer, is neither noised nor counted."""
    mask = torch.zeros(40_000)
    mask[:30_000] = 1
    public = Public({"shared": mask}, range(2), layers=[40_000])
    allowance, release = Allowance(Noise(2.0, "outsider", 2)), Update(3.0, at="shared")
    out = Gate(allowance, Seeded(0, "run")).passes({"update": release}, {"update": torch.zeros(2, 40_000)}, 0, public)
    assert not out.values["update"][:, 30_000:].any()
    assert within(out.values["update"][:, :30_000], 2.0 * 3.0 / math.sqrt(2))
    assert out.bytes == 2 * 4 * 30_000
    assert release.charge(allowance, public).noise == pytest.approx(Update(3.0).charge(allowance, public).noise)


def test_a_message_has_the_entries_that_were_declared() -> None:
    with pytest.raises(ReleaseError, match="1 entries, but the step sent 7"):
        passed({"below": Number(0.0, 1.0, 1.0)}, {"below": torch.zeros(2, 7)}, SILENT, 2)
    public = public_of(4, 2, clip=1.0)
    with pytest.raises(ReleaseError, match="4 entries, but the step sent 5"):
        gate(SILENT).passes({"update": Update("clip")}, {"update": torch.zeros(2, 5)}, 0, public)


def test_several_numbers_have_the_noise_that_all_of_them_need() -> None:
    """Seven numbers in [0, 1] move the sum by sqrt(7) / 2."""
    seven, allowance = Number(0.0, 1.0, 1.0, entries=7), Allowance(Noise(2.0, "server", 1))
    charge = seven.charge(allowance, public_of(1))
    assert charge.sensitivity == pytest.approx(math.sqrt(7) / 2)
    noise = torch.cat(
        [
            gate(Noise(2.0, "server", 1))
            .passes({"n": seven}, {"n": torch.full((4, 7), 0.5)}, number, public_of(1, 4))
            .values["n"]
            for number in range(500)
        ]
    )
    assert within(noise, 2.0 * math.sqrt(7) / 2)


@settings(deadline=None)
@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-12, 1e6),
    st.lists(st.floats(width=32), min_size=2, max_size=8),
)
def test_numbers_are_within_their_range_however_narrow_and_far_from_zero(
    low: float, wide: float, values: list[float]
) -> None:
    """Two clients' numbers are never further apart than the sensitivity that is charged allows, in any precision."""
    for high in (low + wide, math.nextafter(low, math.inf)):
        if high - low < 1e-30:
            continue
        release = Number(low, high, 1.0)
        bounded = release.bounded(torch.tensor([[value] for value in values]), public_of(1, len(values))).rows
        assert (bounded.double().abs() <= release.sensitivity()).all()


def test_a_moment_of_two_seconds_is_no_more_than_two_seconds() -> None:
    """In float32, of which one in 1.7e9 is 128 away from the next, the ends of this range are 128 apart."""
    release = Number(1_700_000_063.0, 1_700_000_065.0, 1.0)
    release.check()
    rows = release.bounded(torch.tensor([[0.0], [1e12]]), public_of(1, 2)).rows
    assert rows.tolist() == [[-1.0], [1.0]]


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (1.0, 0.0), (0.0, math.inf), (-math.inf, 0.0), (0.0, math.nan), (0.0, 1e-40)]
)
def test_a_range_that_bounds_nothing_is_refused(low: float, high: float) -> None:
    for release, unit in ((Number(low, high, 1.0), Unit.CLIENT), (Average(low, high), Unit.RECORD)):
        with pytest.raises(ReleaseError, match="from a number to a larger one"):
            check_steps({"local": {"number": release}}, unit, ())


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, 1e-40, 1e35])
def test_a_threshold_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(ReleaseError, match="finite number above 0"):
        passed({"update": Update("clip")}, {"update": torch.zeros(1, 2)}, SILENT, 1, clip=clip)


def test_releases_that_are_not_due_leave_their_share_to_the_others() -> None:
    releases = {"update": Update(1.0, share=0.9), "loss": Number(0.0, 1.0, share=0.1, every=3)}
    assert due(releases, 3) == releases
    assert due(releases, 1) == {"update": Update(1.0, share=1.0)}


def test_no_draw_is_used_twice() -> None:
    releases = {"update": Update("clip", share=0.5), "second": Update("clip", share=0.5)}
    wanted = {name: torch.zeros(3, 5000) for name in releases}
    draws = []
    for seed in (0, 1):
        for question in (0, 1, 2):
            out = passed(releases, wanted, Noise(1.0, "server", 3), 3, question, seed)
            draws += [row for rows in out.values.values() for row in rows]
    other = gate(Noise(1.0, "server", 3), identity="another run")
    out = other.passes(releases, wanted, 0, public_of(5000, 3, clip=1.0))
    draws += [row for rows in out.values.values() for row in rows]
    matrix = torch.corrcoef(torch.stack(draws).double())
    off = matrix - torch.eye(len(draws))
    # 5000 pairs: a correlation of 0.09 is beyond six standard deviations.
    assert off.abs().max() < 0.09


def test_the_same_draw_is_repeated_for_the_same_purpose() -> None:
    first = passed({"update": Update("clip")}, {"update": torch.zeros(2, 10)}, Noise(1.0, "server", 2), 2)
    again = passed({"update": Update("clip")}, {"update": torch.zeros(2, 10)}, Noise(1.0, "server", 2), 2)
    assert torch.equal(first.values["update"], again.values["update"])


def test_what_is_not_declared_does_not_leave() -> None:
    with pytest.raises(UndeclaredReleaseError, match="secret"):
        check_declared({"update": Update("clip")}, {"update": torch.zeros(2), "secret": torch.zeros(2)}, "local")
    with pytest.raises(UndeclaredReleaseError, match="did not send"):
        check_declared({"update": Update("clip")}, {}, "local")
    check_declared({"mask": Derived("mask")}, {}, "local")


def test_bare_values_leave_as_they_are() -> None:
    rows = torch.tensor([[1.0, 2.0], [math.nan, 1.0]])
    out = passed({"update": Bare("why")}, {"update": rows}, Noise(9.0, "server", 2), 2)
    assert torch.equal(out.values["update"], torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert out.rejected == 1


def test_a_layer_of_which_nothing_leaves_costs_nothing() -> None:
    """With one threshold for each layer and a head that stays at every client, the others share the whole budget."""
    mask = torch.cat([torch.ones(900), torch.zeros(90), torch.ones(10)])
    message = {"clip": CLIPS, "shared": mask}
    public, allowance = Public(message, range(4), layers=LAYERS), Allowance(Noise(2.0, "server", 1))
    for spread in ("energy", "proportional"):
        release = Update("clip", layered=True, spread=spread, at="shared")
        charge = release.charge(allowance, public)
        assert float((charge.sensitivity[0] / charge.noise[0, 2]) ** 2) == pytest.approx(1 / 4)
        assert charge.sensitivity[0] == pytest.approx(math.hypot(0.4, 0.3))


def test_what_was_worked_out_once_does_not_travel() -> None:
    """Who asked is known by its `id`, which may be somebody else's in another process."""
    public = Public({"clip": 1.0}, [0, 1], layers=[3])
    asked = [public.once("that", (public,), lambda value=value: value) for value in (1, 2)]
    assert asked == [1, 1]
    for other in (pickle.loads(pickle.dumps(public)), copy.copy(public), replace(public, clients=[0, 1])):
        assert other == public
        assert other.once("that", (public,), lambda: 3) == 3
    assert public.once("that", (object(),), lambda: 4) == 4
