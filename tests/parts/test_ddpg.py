"""The agent: its losses against torchrl's, its memory, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sordino.parts.ddpg import Ddpg, dense, threshold

HERE = torch.tensor([1.0, 0.5])


def filled(agent: Ddpg, count: int, seed: int = 4) -> dict[str, Any]:
    """An agent that has lived through `count` transitions."""
    generator = torch.Generator().manual_seed(seed)
    state = agent.begin(generator)
    for _ in range(count):
        before, after = torch.rand(2, generator=generator), torch.rand(2, generator=generator)
        action, state = agent.act(state, before, generator)
        state = agent.remember(state, before, action, float(torch.randn((), generator=generator)), after, generator)
    return state


def test_the_critic_by_hand() -> None:
    """tanh(W_s s + W_a a), tanh, one output, with all weights 0.1 and biases 0.2."""
    agent = Ddpg(warm=20)
    sizes = [(3, 5), (5, 5), (5, 1)]
    flat = torch.cat([torch.cat([torch.full((i * o,), 0.1), torch.full((o,), 0.2)]) for i, o in sizes])
    first = math.tanh(0.1 * (1.0 + 0.5 - 0.3) + 0.2)
    expected = 0.5 * math.tanh(0.5 * first + 0.2) + 0.2
    assert float(agent.value(flat, HERE.unsqueeze(0), torch.tensor([-0.3]))) == pytest.approx(expected, rel=1e-6)


def test_the_network_is_torchs() -> None:
    linear = [torch.nn.Linear(2, 10), torch.nn.Linear(10, 5), torch.nn.Linear(5, 1)]
    network = torch.nn.Sequential(linear[0], torch.nn.Tanh(), linear[1], torch.nn.Tanh(), linear[2])
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    x = torch.randn(7, 2)
    assert torch.allclose(dense(flat, [2, 10, 5, 1], x), network(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_losses_are_torchrls() -> None:
    """With target networks that have parted from the others, so that taking the wrong one would show."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.modules import ValueOperator
    from torchrl.objectives import DDPGLoss

    agent = Ddpg(warm=20, soft=0.3)
    state = filled(agent, 40)
    rows = state["transitions"][:12]
    before, action, reward, after = rows[:, :2], rows[:, 2], rows[:, 3], rows[:, 4:]

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(state["actor"].clone())

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return agent.policy(self.flat, observation).unsqueeze(1)

    class Value(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(state["critic"].clone())

        def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return agent.value(self.flat, observation, action.squeeze(1)).unsqueeze(1)

    loss = DDPGLoss(
        TensorDictModule(Policy(), ["observation"], ["action"]),
        ValueOperator(Value(), in_keys=["observation", "action"]),
        loss_function="l2",
        delay_actor=True,
        delay_value=True,
    )
    loss.make_value_estimator(gamma=agent.discount)
    loss.target_actor_network_params["module", "flat"].data.copy_(state["actor_target"])
    loss.target_value_network_params["module", "flat"].data.copy_(state["critic_target"])
    none = torch.zeros(12, 1, dtype=torch.bool)
    following = {"observation": after, "reward": reward.unsqueeze(1), "done": none, "terminated": none}
    batch = TensorDict(
        {"observation": before, "action": action.unsqueeze(1), "next": TensorDict(following, [12])}, batch_size=[12]
    )
    theirs = loss(batch)
    target = agent.target(state, reward, after)
    ours = agent.critic_loss(state["critic"], before, action, target)
    assert float(ours) == pytest.approx(float(theirs["loss_value"]), abs=1e-5)
    ours = agent.actor_loss(state["actor"], state["critic"], before)
    assert float(ours) == pytest.approx(float(theirs["loss_actor"]), abs=1e-5)
    assert float(ours) != pytest.approx(
        float(agent.actor_loss(state["actor_target"], state["critic"], before)), abs=1e-4
    )


def test_targets_move_by_tau() -> None:
    agent = Ddpg(warm=20, soft=0.25)
    state = filled(agent, 20)
    later = agent.updated(state, state["transitions"][:8])
    for name in ("actor", "critic"):
        assert not torch.equal(later[name], state[name])
        expected = 0.25 * later[name] + 0.75 * state[f"{name}_target"]
        assert torch.allclose(later[f"{name}_target"], expected, atol=1e-7)


def test_only_stored_transitions_are_sampled() -> None:
    """Two at a time until there are sixteen, and never an empty slot."""
    agent, generator = Ddpg(warm=20, steps=0), torch.Generator().manual_seed(0)
    state = agent.begin(generator)
    for stored in range(1, 21):
        state = agent.remember(state, HERE, 0.5, float(stored), HERE, generator)
        for _ in range(20):
            rewards = agent.sampled(state, generator)[:, 3].tolist()
            assert len(rewards) == (16 if stored >= 16 else min(2, stored))
            assert len(set(rewards)) == len(rewards)
            assert set(rewards) <= set(range(1, stored + 1))


def test_the_memory_is_a_ring() -> None:
    agent, generator = Ddpg(warm=20, steps=0, memory=5), torch.Generator().manual_seed(0)
    state = agent.begin(generator)
    for reward in range(7):
        state = agent.remember(state, HERE, 0.0, float(reward), HERE, generator)
    assert state["transitions"][:, 3].tolist() == [5, 6, 2, 3, 4]


def test_nothing_is_shared_and_nothing_changed_in_place() -> None:
    """What an old state says stays; equal generators give equal agents, whatever the global one does."""
    agent = Ddpg(warm=20)
    state = filled(agent, 20)
    kept = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    agent.remember(state, HERE, 0.1, 1.0, HERE, torch.Generator().manual_seed(1))
    assert all(torch.equal(state[name], value) for name, value in kept.items())
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = filled(agent, 20)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(again[name], value) for name, value in kept.items())


def test_exploration_is_an_ornstein_uhlenbeck_process() -> None:
    """Stationary deviation sigma/sqrt(1 - (1 - theta)^2) = 0.1898, correlation 0.85; 20,000 steps, 5 deviations."""
    agent, generator = Ddpg(warm=0), torch.Generator().manual_seed(0)
    state = agent.begin(generator)
    seen = []
    for _ in range(20_000):
        action, state = agent.act(state, HERE, generator)
        assert -1 <= action <= 1
        seen.append(state["noise"])
    noise = torch.tensor(seen[100:])
    assert float(noise.std()) == pytest.approx(0.1 / math.sqrt(1 - 0.85**2), abs=0.017)
    assert float((noise[1:] * noise[:-1]).mean() / noise.square().mean()) == pytest.approx(0.85, abs=0.02)


def test_threshold_by_hand() -> None:
    assert [threshold(action, 0.1, 10) for action in (-1, 0, 1)] == pytest.approx([0.1, 1.0, 10.0])
    assert threshold(0.5, 0.1, 10) == pytest.approx(math.sqrt(10))


def found(best: float, seed: int, steps: int) -> float:
    """The threshold in [0.1, 10] that an agent has learned when the reward is -|log C - log best|."""
    agent, generator = Ddpg(warm=20), torch.Generator().manual_seed(seed)
    state = agent.begin(generator)
    for _ in range(steps):
        action, state = agent.act(state, HERE, generator)
        reward = -abs(math.log(threshold(action, 0.1, 10) / best))
        state = agent.remember(state, HERE, action, reward, HERE, generator)
    return threshold(agent.mean_action(state, HERE), 0.1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_it_finds_the_best_threshold_of_a_bandit(seed: int) -> None:
    """The best is not the middle of the range, where a new agent begins. 300 transitions."""
    assert found(0.3, seed, 300) == pytest.approx(0.3, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("best", [1.0, 4.0])
@pytest.mark.parametrize("seed", range(10))
def test_it_finds_other_thresholds_too(seed: int, best: float) -> None:
    assert found(best, seed, 500) == pytest.approx(best, rel=0.1)
