"""Proximal policy optimization (Schulman et al. 2017) for one bounded action.

The agent's whole state is a dictionary of tensors, so that it can be checkpointed with the server. The policy is
a Beta distribution on (0, 1); losses are those of PPO with a clipped surrogate and generalized advantage
estimation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Beta
from torch.nn import functional

from sordino.learning.descent import adam
from sordino.learning.parameters import flatten
from sordino.learning.records import Learner

State = dict[str, Any]


@dataclass(frozen=True)
class Ppo:
    """Hyper-parameters of an agent; `begin` makes its state."""

    observations: int = 2
    """Numbers in a state: loss and accuracy."""
    hidden: int = 16
    """Width of both networks."""
    discount: float = 0.9
    trace: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip: float = 0.2
    """How far the probability ratio may leave 1."""
    epochs: int = 10
    """Passes over the replay in an update: the paper's M."""
    replay: int = 10
    """Transitions gathered before an update: the paper's |D_P|."""
    actor_rate: float = 5e-3
    """Learning rate of the policy. The released demonstration has 1e-3, which a run's few updates hardly move."""
    critic_rate: float = 1e-2
    """Learning rate of the critic: the released demonstration's."""

    def begin(self, random: Generator) -> State:
        """A new agent."""
        seed = int(torch.randint(0, 2**31, (1,), generator=random))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks = {"actor": flatten(self._actor().module), "critic": flatten(self._critic().module)}
        state: State = dict(networks)
        for name, flat in networks.items():
            state[f"{name}_memory"] = {
                "first": torch.zeros_like(flat),
                "second": torch.zeros_like(flat),
                "count": torch.zeros(()),
            }
        state["transitions"] = torch.zeros(0, 2 * self.observations + 3)
        return state

    def act(self, state: State, observation: Tensor, random: Generator) -> tuple[float, float]:
        """An action in (0, 1) drawn from the policy, and its log-density."""
        policy = self.policy(state["actor"], observation.unsqueeze(0))
        one = torch._standard_gamma(policy.concentration1, generator=random)
        other = torch._standard_gamma(policy.concentration0, generator=random)
        action = (one / (one + other)).clamp(1e-4, 1 - 1e-4)
        return float(action), float(policy.log_prob(action))

    def mean_action(self, state: State, observation: Tensor) -> float:
        """The policy's mean."""
        return float(self.policy(state["actor"], observation.unsqueeze(0)).mean)

    def remember(
        self, state: State, before: Tensor, action: float, log_density: float, reward: float, after: Tensor
    ) -> State:
        """The state with one more transition; an update follows when the replay is full."""
        row = torch.cat([before, torch.tensor([action, log_density, reward]), after])
        state = {**state, "transitions": torch.cat([state["transitions"], row.unsqueeze(0)])}
        return self.updated(state) if len(state["transitions"]) >= self.replay else state

    def updated(self, state: State) -> State:
        """The state after learning from the replay, which is then empty."""
        rows = state["transitions"]
        size = self.observations
        before, after = rows[:, :size], rows[:, size + 3 :]
        action, log_density, reward = rows[:, size], rows[:, size + 1], rows[:, size + 2]
        with torch.no_grad():
            target = reward + self.discount * self.value(state["critic"], after)
            advantage = advantages(target - self.value(state["critic"], before), self.discount * self.trace)
            if len(advantage) > 1:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        actor, critic = state["actor"].clone(), state["critic"].clone()
        memories = {name: {k: v.clone() for k, v in state[f"{name}_memory"].items()} for name in ("actor", "critic")}
        for _ in range(self.epochs):
            slope = gradient(actor, lambda flat: self.actor_loss(flat, before, action, log_density, advantage))
            adam(actor, slope, tuple(memories["actor"].values()), self.actor_rate)
            slope = gradient(critic, lambda flat: self.critic_loss(flat, before, target))
            adam(critic, slope, tuple(memories["critic"].values()), self.critic_rate)
        return {
            **state,
            "actor": actor,
            "critic": critic,
            "actor_memory": memories["actor"],
            "critic_memory": memories["critic"],
            "transitions": rows[:0],
        }

    def actor_loss(
        self, flat: Tensor, before: Tensor, action: Tensor, log_density: Tensor, advantage: Tensor
    ) -> Tensor:
        """-mean min(ratio A, clip(ratio, 1 - c, 1 + c) A)."""
        ratio = (self.policy(flat, before).log_prob(action) - log_density).exp()
        held = ratio.clamp(1 - self.clip, 1 + self.clip)
        return -torch.minimum(ratio * advantage, held * advantage).mean()

    def critic_loss(self, flat: Tensor, before: Tensor, target: Tensor) -> Tensor:
        """mean (V(s) - target)^2, with the one-step target r + discount V(s') (Algorithm 2, line 32)."""
        return (self.value(flat, before) - target).square().mean()

    def policy(self, flat: Tensor, observations: Tensor) -> Beta:
        """The distribution of the action in each state; both parameters are above one, so that it has one peak."""
        out = functional.softplus(self._actor().logits(flat, observations)) + 1
        return Beta(out[:, 0], out[:, 1])

    def value(self, flat: Tensor, observations: Tensor) -> Tensor:
        """The critic's value of each state."""
        return self._critic().logits(flat, observations).squeeze(1)

    def _actor(self) -> Learner:
        wide = self.hidden
        layers = [nn.Linear(self.observations, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 2)]
        return Learner(nn.Sequential(*layers))

    def _critic(self) -> Learner:
        return Learner(nn.Sequential(nn.Linear(self.observations, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1)))


def observation(loss: Tensor, accuracy: Tensor, worst: float) -> Tensor:
    """What an agent sees: a loss held to [0, worst] and an accuracy held to [0, 1].

    A loss that is no number, or infinite, is that of a model that has diverged: the worst, and an accuracy of 0.
    """
    held = loss.reshape(1).nan_to_num(worst, worst, 0.0).clamp(0, worst)
    return torch.cat([held, accuracy.reshape(1).nan_to_num(0.0).clamp(0, 1)])


def advantages(errors: Tensor, decay: float) -> Tensor:
    """Generalized advantage estimation from temporal-difference errors of consecutive steps."""
    found = torch.empty_like(errors)
    running = torch.zeros(())
    for place in range(len(errors) - 1, -1, -1):
        running = errors[place] + decay * running
        found[place] = running
    return found


def gradient(flat: Tensor, loss: Any) -> Tensor:
    """The gradient of a loss at `flat`."""
    at = flat.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(at), at)
    return slope
