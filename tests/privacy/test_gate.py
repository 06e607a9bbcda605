"""The only exit: what it bounds, how much noise it adds, that no draw is used twice."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from sordino.privacy.gate import Gate, Noise, UndeclaredReleaseError
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Bare, Derived, Number, Public, Update, due

SILENT = Noise(multiplier=1e-30, protect_from="server", minimum_cohort=1)


def passed(releases: dict, wanted: dict, noise: Noise, clients: int, round: int = 0, seed: int = 0, clip: float = 1.0):
    gate = Gate(noise, Seeded(seed, "identity"))
    return gate.passes(releases, wanted, range(clients), "local", round, Public({"clip": clip}))


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40),
    st.floats(1e-3, 1e3),
)
def test_the_norm_after_clipping_is_at_most_the_threshold(values: list[float], clip: float) -> None:
    bounded = Update("clip").bounded(torch.tensor([values]), Public({"clip": clip}))
    assert bounded.rows.double().norm() <= clip


def test_short_vectors_are_left_alone_and_long_ones_keep_their_direction() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0]])
    bounded = Update(1.0).bounded(rows, Public({})).rows
    assert torch.equal(bounded[0], rows[0])
    assert torch.allclose(bounded[1], torch.tensor([0.6, 0.8]), atol=1e-6)


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
    assert Number(0.0, 1.0, 1.0).sensitivity(Public({})) == 0.5


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
    noise = Noise(2.0, "server", 1)
    public = Public({"clip": 5.0})
    costs = [r.cost(r.deviations(noise.of_message(r), 10, public), 10, public) for r in releases.values()]
    assert sum(costs) == pytest.approx(1 / 4)


LAYERS = [900, 90, 10]
CLIPS = torch.tensor([0.4, 0.1, 0.3])


@pytest.mark.parametrize("spread", ["energy", "proportional"])
def test_layered_noise_costs_what_one_gaussian_costs(spread: str) -> None:
    """mu^2 summed over layers from the noise that is really drawn is 1/z^2, whatever the thresholds are."""
    z, release = 2.0, Update("clip", layered=True, spread=spread)
    public = Public({"clip": CLIPS}, layers=LAYERS)
    gate = Gate(Noise(z, "server", 1), Seeded(0, "identity"))
    wanted = {"update": torch.zeros(400, 1000)}
    noise = gate.passes({"update": release}, wanted, range(400), "local", 0, public).values["update"].double()
    drawn = [part.square().mean() for part in noise.split(LAYERS, dim=1)]
    mu2 = sum(float(c.double() ** 2 / variance) for c, variance in zip(CLIPS, drawn, strict=True))
    assert mu2 == pytest.approx(1 / z**2, rel=0.06)  # 4000 draws in the smallest layer: 2.2 % standard error
    assert release.cost(release.deviations(z, 1000, public), 1000, public) == pytest.approx(1 / z**2, rel=1e-12)


def test_spread_by_energy_is_the_least_noise() -> None:
    public = Public({"clip": CLIPS}, layers=LAYERS)
    energy = {
        spread: float(Update("clip", layered=True, spread=spread).deviations(1.0, 1000, public).square().sum())
        for spread in ("energy", "proportional")
    }
    weight = sum(float(c) * math.sqrt(d) for c, d in zip(CLIPS, LAYERS, strict=True))
    assert energy["energy"] == pytest.approx(weight**2, rel=1e-6)
    assert energy["energy"] < energy["proportional"]
    flat = Update(float(CLIPS.norm())).deviations(1.0, 1000, public).square().item() * 1000
    assert energy["energy"] < flat


def test_each_layer_is_held_to_its_own_threshold() -> None:
    public = Public({"clip": CLIPS}, layers=LAYERS)
    rows = torch.randn(3, 1000) * 5
    bounded = Update("clip", layered=True).bounded(rows, public).rows
    for part, clip in zip(bounded.split(LAYERS, dim=1), CLIPS, strict=True):
        assert (part.double().norm(dim=1) <= float(clip)).all()
        assert part.double().norm(dim=1).min() == pytest.approx(float(clip), rel=1e-5)


def test_thresholds_of_single_clients_come_from_their_public_state() -> None:
    public = Public({}, {"mine": torch.tensor([[1.0], [2.0]])})
    bounded = Update("mine").bounded(torch.full((2, 4), 9.0), public).rows
    assert bounded.norm(dim=1).tolist() == pytest.approx([1.0, 2.0], rel=1e-5)
    out = Gate(Noise(1.0, "server", 1), Seeded(0, "identity")).passes(
        {"update": Update("mine")},
        {"update": torch.zeros(2, 50_000)},
        range(2),
        "local",
        0,
        Public({}, public.states),
    )
    assert within(out.values["update"][0], 1.0)
    assert within(out.values["update"][1], 2.0)


def test_nothing_leaves_where_a_mask_is_zero() -> None:
    shared = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    releases = {
        "update": Update(1.0, at="shared"),
        "shared": Derived("shared", of=("update",), published=True, bits=1),
    }
    out = Gate(Noise(1.0, "server", 1), Seeded(0, "identity")).passes(
        releases, {"update": torch.ones(2, 4)}, range(2), "local", 0, Public({}, {"shared": shared})
    )
    assert ((out.values["update"] != 0) == (shared > 0)).all()
    assert torch.equal(out.values["shared"], shared)
    assert out.size == 2 * (4 * 2 + 1), "two floats and four bits for each client"


def test_releases_that_are_not_due_leave_their_share_to_the_others() -> None:
    releases = {"update": Update(1.0, share=0.9), "loss": Number(0.0, 1.0, share=0.1, every=3)}
    assert due(releases, 3) == releases
    assert due(releases, 1) == {"update": Update(1.0, share=1.0)}


def test_no_draw_is_used_twice() -> None:
    releases = {"update": Update("clip", share=0.5), "second": Update("clip", share=0.5)}
    wanted = {name: torch.zeros(3, 5000) for name in releases}
    draws = []
    for seed in (0, 1):
        for round in (0, 1, 2):
            out = passed(releases, wanted, Noise(1.0, "server", 3), 3, round, seed)
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
        passed({"update": Update("clip")}, {"update": torch.zeros(1, 2), "secret": torch.zeros(1, 2)}, SILENT, 1)
    with pytest.raises(UndeclaredReleaseError, match="did not send"):
        passed({"update": Update("clip")}, {}, SILENT, 1)


def test_bare_values_leave_as_they_are() -> None:
    rows = torch.tensor([[1.0, 2.0], [math.nan, 1.0]])
    out = passed({"update": Bare("why")}, {"update": rows}, Noise(9.0, "server", 2), 2)
    assert torch.equal(out.values["update"], torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert out.rejected == 1
