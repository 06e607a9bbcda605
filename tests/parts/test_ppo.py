"""The agent: its losses against torchrl's, and that it learns."""

from __future__ import annotations

import pytest
import torch

from sordino.parts.agents.ppo import Ppo, advantages, gradient
from sordino.parts.ppo_threshold import trimmed_mean


def transitions(agent: Ppo, count: int) -> tuple[dict, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    state = agent.begin(generator)
    rows = []
    for _ in range(count):
        before, after = torch.rand(2, generator=generator), torch.rand(2, generator=generator)
        action, log_density = agent.act(state, before, generator)
        reward = float(torch.randn((), generator=generator))
        rows.append(torch.cat([before, torch.tensor([action, log_density, reward]), after]))
    return state, torch.stack(rows)


def test_advantages_by_hand() -> None:
    assert advantages(torch.tensor([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]


@pytest.mark.filterwarnings("ignore")
def test_losses_are_torchrls() -> None:
    """Clipped surrogate, generalized advantages and critic loss, after the policy has moved."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torch.distributions import Beta
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    agent = Ppo()
    state, rows = transitions(agent, 12)
    before, after = rows[:, :2], rows[:, 5:]
    action, log_density, reward = rows[:, 2], rows[:, 3], rows[:, 4]
    moved = state["actor"] + 0.3 * torch.randn(len(state["actor"]), generator=torch.Generator().manual_seed(1))

    value, following = agent.value(state["critic"], before), agent.value(state["critic"], after)
    none = torch.zeros(12, 1, dtype=torch.bool)
    theirs, _ = generalized_advantage_estimate(
        agent.discount, agent.trace, value.unsqueeze(1), following.unsqueeze(1), reward.unsqueeze(1), none, none
    )
    target = reward + agent.discount * following
    ours = advantages((target - value).detach(), agent.discount * agent.trace)
    assert torch.allclose(ours, theirs.squeeze(1), atol=1e-5)

    class Policy(nn.Module):
        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            chosen = agent.policy(moved, observation)
            return chosen.concentration1.unsqueeze(1), chosen.concentration0.unsqueeze(1)

    class Critic(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return agent.value(state["critic"], observation).unsqueeze(1)

    actor = ProbabilisticActor(
        TensorDictModule(Policy(), ["observation"], ["concentration1", "concentration0"]),
        in_keys=["concentration1", "concentration0"],
        distribution_class=lambda concentration1, concentration0: torch.distributions.Independent(
            Beta(concentration1, concentration0), 1
        ),
        return_log_prob=True,
    )
    loss = ClipPPOLoss(
        actor,
        ValueOperator(Critic(), in_keys=["observation"]),
        clip_epsilon=agent.clip,
        entropy_bonus=False,
        loss_critic_type="l2",
        critic_coeff=1.0,
        normalize_advantage=False,
    )
    batch = TensorDict(
        {
            "observation": before,
            "action": action.unsqueeze(1),
            "action_log_prob": log_density,
            "advantage": ours.unsqueeze(1),
            "value_target": target.detach().unsqueeze(1),
        },
        batch_size=[12],
    )
    theirs_losses = loss(batch)
    ours_loss = agent.actor_loss(moved, before, action, log_density, ours)
    assert float(ours_loss) == pytest.approx(float(theirs_losses["loss_objective"]), abs=1e-5)
    critic = agent.critic_loss(state["critic"], before, target.detach())
    assert float(critic) == pytest.approx(float(theirs_losses["loss_critic"]), abs=1e-5)


def test_an_update_lowers_the_critics_loss_and_empties_the_replay() -> None:
    agent = Ppo()
    state, rows = transitions(agent, 10)
    later = agent.updated({**state, "transitions": rows})
    target = rows[:, 4] + agent.discount * agent.value(state["critic"], rows[:, 5:]).detach()
    before = agent.critic_loss(state["critic"], rows[:, :2], target)
    assert agent.critic_loss(later["critic"], rows[:, :2], target) < before
    assert len(later["transitions"]) == 0
    assert not torch.equal(later["actor"], state["actor"])
    assert torch.isfinite(gradient(later["actor"], lambda flat: agent.policy(flat, rows[:, :2]).mean.sum())).all()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_it_finds_the_best_threshold_of_a_bandit(seed: int) -> None:
    """Thresholds in [0.05, 2], the best is 1; the reward falls with the distance. 200 steps."""
    agent, generator = Ppo(), torch.Generator().manual_seed(seed)
    state, observation = agent.begin(generator), torch.tensor([1.0, 0.5])
    for _ in range(200):
        action, log_density = agent.act(state, observation, generator)
        reward = -abs(0.05 + 1.95 * action - 1.0)
        state = agent.remember(state, observation, action, log_density, reward, observation)
    assert 0.05 + 1.95 * agent.mean_action(state, observation) == pytest.approx(1.0, rel=0.1)


def test_trimmed_mean_keeps_the_tenth_to_the_eightieth_percentile() -> None:
    # H3 of the privacy review: of 50 clients, 35 remain; moving one of 40 zeros to B shifts the mean by B/35.
    values = torch.tensor([0.0] * 40 + [7.0] * 10)
    assert trimmed_mean(values) == 0.0
    values[0] = 7.0
    assert float(trimmed_mean(values)) == pytest.approx(7.0 / 35)
