"""FedGLP-ADP: shares, thresholds, aggregation and communication against hand-worked numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import sordino
from sordino import models
from sordino.learning.parameters import Layout
from sordino.method import Budget
from sordino.methods.fedglp_adp import FedGLPADP
from sordino.parts.masks import schedule
from sordino.parts.thresholds import first_weights, stepped
from sordino.privacy.accountant import rdp_multiplier
from sordino.schedule import Schedule

# The paper's SVHN network has four layers and 1,626,442 parameters.
SVHN = Layout.of(models.build("cnn-svhn", (3, 32, 32), 10)).layers
SCHEDULE = Schedule.of(rounds=20, clients=10, participation=1.0)


def test_first_thresholds_of_the_papers_network() -> None:
    assert sum(SVHN) == 1_626_442
    clips = 0.5 * first_weights(SVHN).sqrt()
    assert clips.tolist() == pytest.approx([0.0117, 0.0533, 0.4968, 0.0141], abs=6e-5)


def test_without_a_step_the_weights_stay() -> None:
    weights = first_weights(SVHN)
    assert torch.equal(stepped(weights, torch.ones(4), 0.0, weights), weights)


@pytest.mark.parametrize(
    ("direction", "expected"), [(1.0, (0.062, 0.239, 0.429, 0.074)), (-1.0, (0.0016, 0.0074, 0.500, 0.0019))]
)
def test_twenty_steps_the_same_way(direction: float, expected: tuple[float, ...]) -> None:
    first = weights = first_weights(SVHN)
    for _ in range(20):
        weights = stepped(weights, torch.full((4,), direction), 0.2, first)
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-6)
    assert (0.5 * weights.sqrt()).tolist() == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("gamma", [0.2, 0.4, 0.8, 1.6])
def test_squared_thresholds_always_sum_to_the_whole(gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    first = weights = first_weights([10, 200, 3000, 7])
    for _ in range(200):
        direction = torch.randint(-1, 2, (4,), generator=generator).float()
        weights = stepped(weights, direction, gamma, first)
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-6)
        assert (weights >= first / 100 / 4.01).all(), "held above a hundredth of the first value, then scaled"


# methods page, section 2: T = 20, delta = 0.1, multipliers by RDP for epsilon 2, 4, 6, 8, 16.
@pytest.mark.parametrize(("epsilon", "share"), [(2, 0.448), (4, 0.337), (6, 0.300), (8, 0.281), (16, 0.250)])
def test_the_papers_share_for_each_budget(epsilon: float, share: float) -> None:
    moderate = rdp_multiplier(6, 20, 0.1)
    noise = rdp_multiplier(epsilon, 20, 0.1)
    # The same formula in exact accounting needs the moderate multiplier in its own terms, so it is put in by hand.
    assert 0.3 * math.exp(0.2 * (noise - moderate)) == pytest.approx(share, abs=0.001)
    exact = FedGLPADP().share(SCHEDULE, Budget(0.1, math.sqrt(20) / 2.0))
    assert 0 < exact <= 0.95


def test_at_moderate_noise_the_share_is_the_first_one() -> None:
    from sordino.privacy.plan import multiplier_for

    budget = Budget(1e-5, multiplier_for(6, 1e-5, 20))
    assert FedGLPADP(beta0=0.3).share(SCHEDULE, budget) == pytest.approx(0.3)
    assert FedGLPADP(beta0=0.3, growth=0.0).share(SCHEDULE, Budget(1e-5, 50.0)) == pytest.approx(0.3)


def test_the_penalty_is_the_gradient_of_both_constraints() -> None:
    torch.manual_seed(1)
    start, model = torch.randn(8), torch.randn(8, dtype=torch.float64)
    personal = (torch.arange(8) % 3 == 0).float()
    method = FedGLPADP(lambda1=0.3, lambda2=0.7, clip=0.5)
    at = model.clone().requires_grad_()
    own, common = ((at - start) * personal).norm(), ((at - start) * (1 - personal)).norm()
    (0.3 / 2 * own + 0.7 / 2 * (common - 0.5).abs()).backward()
    assert torch.allclose(method._penalty(start, personal)(model), at.grad, atol=1e-9)


def run(folder: Path, **keys: object) -> dict:
    common = {"clients": 6, "rounds": 10, "model": "mlp", "delta": 1e-5, "noise_multiplier": 3.0, "store": folder}
    settings = {"epochs": 1, "batch": 80, "growth": 0.0} | keys.pop("set", {})  # type: ignore[operator]
    return sordino.run(method="fedglp-adp", set=settings, **(common | keys))


def test_bytes_on_the_wire_follow_equation_20(tmp_path: Path) -> None:
    """Masks used in rounds 0 to T-1 hold the share beta t/T, so the saving is (16 beta (T-1)/T - 1) / 32."""
    paper, sound = (run(tmp_path, variant=variant) for variant in ("paper", "sound"))
    full = 10 * 6 * 4 * sound["parameters"]
    assert sound["upload_bytes"] == full
    saving = 1 - paper["upload_bytes"] / full
    assert saving == pytest.approx((16 * 0.3 * 9 / 10 - 1) / 32, abs=0.002)
    assert pytest.approx(0.11875) == (16 * 0.3 - 1) / 32


def test_the_papers_mechanism_costs_everybody_what_it_costs_the_server(tmp_path: Path) -> None:
    paper = run(tmp_path, variant="paper")
    assert paper["epsilon"]["outsider"] == pytest.approx(paper["epsilon"]["server"], rel=1e-12)
    assert paper["epsilon"]["outsider"] > 2 * run(tmp_path)["epsilon"]["outsider"]


def test_masks_are_nearly_random_under_honest_noise(tmp_path: Path) -> None:
    """The published mask picks the largest perturbed changes: at an honest multiplier it follows the noise.

    Of the truly largest tenth of changes, noise of 1.2 against changes of 0.001 finds about a tenth.
    """
    generator = torch.Generator().manual_seed(0)
    change = 1e-3 * torch.randn(20_000, generator=generator)
    noise = 1.2 * torch.randn(20_000, generator=generator)
    from sordino.parts.masks import grown

    count = schedule(0.1, 1, 1, [20_000])
    honest = grown(torch.zeros(20_000), change, count, [20_000])
    perturbed = grown(torch.zeros(20_000), change + noise, count, [20_000])
    overlap = float((honest * perturbed).sum()) / count[0]
    assert overlap == pytest.approx(0.1, abs=0.04)  # six standard errors


def test_a_layer_whose_sum_grows_gets_a_larger_threshold() -> None:
    """The sound rule reads the noisy sum: a layer whose part of it grows is clipped less."""
    from types import SimpleNamespace

    from sordino.parts.thresholds import LayerWise

    rule = LayerWise(gamma=0.4)
    layout = SimpleNamespace(layers=[50, 50])
    fed = SimpleNamespace(layout=layout)

    def got(first: float, second: float) -> SimpleNamespace:
        total = torch.cat([torch.full((50,), first), torch.full((50,), second)])
        return SimpleNamespace(
            who=range(10), mean=lambda name: total / 10, deviation=lambda name: torch.full((100,), 0.1)
        )

    state = rule.begin(fed, 1.0)
    state = rule.following(state, got(1.0, 1.0), fed, None)
    assert state["clip"].tolist() == pytest.approx([math.sqrt(0.5)] * 2)
    state = rule.following(state, got(2.0, 0.5), fed, None)
    assert state["clip"][0] > state["clip"][1]
    assert float(state["clip"].square().sum()) == pytest.approx(1.0, abs=1e-6)
    drowned = rule.following({**state, "energy": torch.zeros(2)}, got(0.05, 0.01), fed, None)
    assert torch.allclose(drowned["clip"], state["clip"]), "what drowns in noise moves nothing"
