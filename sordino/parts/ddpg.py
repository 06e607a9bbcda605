"""Deep deterministic policy gradient (Lillicrap et al. 2016) for one bounded action, as AdaDP-CFL uses it.

An agent's whole state is a dictionary of tensors and numbers, so that it can be checkpointed with the server, and
nothing is shared between states: there may be one agent for all clients or one for each. The actor is a network
2-10-5-1 with tanh everywhere, the critic tanh(W_s s + W_a a) of width 5, tanh of width 5, and one output: the
widths of the authors' released code.

The released code takes Q'(s', a) with the action that was *taken* as the critic's target; here it is Q'(s', mu'(s')).
Its memory begins with an all-zero transition that is sampled like a real one; here only what was stored is sampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor

from sordino.learning.descent import adam
from sordino.parts.ppo import gradient

State = dict[str, Any]


@dataclass(frozen=True)
class Ddpg:
    """Hyper-parameters of an agent; `begin` makes its state."""

    warm: int
    """Actions drawn uniformly before the policy is asked: one for each client that the agent acts for."""
    observations: int = 2
    """Numbers in an observation: loss and accuracy."""
    discount: float = 0.9
    actor_rate: float = 1e-3
    """Adam's learning rate of the actor. Released code: 1e-3."""
    critic_rate: float = 1e-2
    """Adam's learning rate of the critic. Released code: 1e-3, with which the critic learns nothing from a bandit's 500
    transitions; the actor then saturates at one end of the action range, where the gradient of tanh vanishes."""
    soft: float = 0.001
    """Share of the way that the target networks move towards the others at each step. Released code: .001."""
    memory: int = 500
    """Transitions kept; a new one then replaces the oldest."""
    batch: int = 16
    """Transitions a step learns from; 2, the released code's number, until there are so many."""
    steps: int = 4
    """Steps of learning for each new transition. Released code: 1, with which the actor saturates too."""
    pull: float = 0.15
    """Theta of the Ornstein-Uhlenbeck exploration noise."""
    spread: float = 0.1
    """Sigma of the Ornstein-Uhlenbeck exploration noise."""

    def begin(self, random: Generator) -> State:
        """Return the state of a new agent."""
        actor, critic = (initial(widths, random) for widths in (self._actor, self._critic))
        return {
            "actor": actor,
            "critic": critic,
            "actor_target": actor.clone(),
            "critic_target": critic.clone(),
            "actor_memory": blank(actor),
            "critic_memory": blank(critic),
            "transitions": torch.zeros(self.memory, 2 * self.observations + 2),
            "stored": 0,
            "acted": 0,
            "noise": 0.0,
        }

    def act(self, state: State, observation: Tensor, random: Generator) -> tuple[float, State]:
        """Return an action in [-1, 1], with exploration noise, and the next state."""
        draw = float(torch.randn((), generator=random))
        noise = state["noise"] * (1 - self.pull) + self.spread * draw
        if state["acted"] < self.warm:
            action = 2 * float(torch.rand((), generator=random)) - 1
        else:
            action = min(1.0, max(-1.0, self.mean_action(state, observation) + noise))
        return action, {**state, "noise": noise, "acted": state["acted"] + 1}

    def mean_action(self, state: State, observation: Tensor) -> float:
        """Return the policy's action, without exploration noise."""
        return float(self.policy(state["actor"], observation.unsqueeze(0)))

    def remember(
        self, state: State, before: Tensor, action: float, reward: float, after: Tensor, random: Generator
    ) -> State:
        """Return the state with one more transition, after learning from a sample of the memory."""
        transitions = state["transitions"].clone()
        transitions[state["stored"] % self.memory] = torch.cat([before, torch.tensor([action, reward]), after])
        state = {**state, "transitions": transitions, "stored": state["stored"] + 1}
        for _ in range(self.steps if state["stored"] > 1 else 0):
            state = self.updated(state, self.sampled(state, random))
        return state

    def sampled(self, state: State, random: Generator) -> Tensor:
        """Return a random sample of the stored transitions, none twice."""
        kept = min(state["stored"], self.memory)
        size = self.batch if kept >= self.batch else min(2, kept)
        return state["transitions"][torch.randperm(kept, generator=random)[:size]]

    def updated(self, state: State, rows: Tensor) -> State:
        """Return the state after one step of the critic, the actor and their targets on some transitions."""
        before, action, reward, after = rows.split([self.observations, 1, 1, self.observations], dim=1)
        target = self.target(state, reward.squeeze(1), after)
        critic, critic_memory = adam_step(
            state["critic"],
            gradient(state["critic"], lambda flat: self.critic_loss(flat, before, action.squeeze(1), target)),
            state["critic_memory"],
            self.critic_rate,
        )
        actor, actor_memory = adam_step(
            state["actor"],
            gradient(state["actor"], lambda flat: self.actor_loss(flat, critic, before)),
            state["actor_memory"],
            self.actor_rate,
        )
        return {
            **state,
            "actor": actor,
            "critic": critic,
            "actor_memory": actor_memory,
            "critic_memory": critic_memory,
            "actor_target": state["actor_target"].lerp(actor, self.soft),
            "critic_target": state["critic_target"].lerp(critic, self.soft),
        }

    def target(self, state: State, reward: Tensor, after: Tensor) -> Tensor:
        """Return the critic's target: y = r + discount Q'(s', mu'(s'))."""
        following = self.policy(state["actor_target"], after)
        return reward + self.discount * self.value(state["critic_target"], after, following)

    def critic_loss(self, critic: Tensor, before: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """mean (Q(s, a) - y)^2."""
        return (self.value(critic, before, action) - target).square().mean()

    def actor_loss(self, actor: Tensor, critic: Tensor, before: Tensor) -> Tensor:
        """-mean Q(s, mu(s))."""
        return -self.value(critic, before, self.policy(actor, before)).mean()

    def policy(self, actor: Tensor, observations: Tensor) -> Tensor:
        """Return the action for each observation, in [-1, 1]."""
        return dense(actor, self._actor, observations).tanh().squeeze(1)

    def value(self, critic: Tensor, observations: Tensor, action: Tensor) -> Tensor:
        """Return the critic's value of each action for its observation."""
        return dense(critic, self._critic, torch.cat([observations, action.unsqueeze(1)], dim=1)).squeeze(1)

    @property
    def _actor(self) -> list[int]:
        return [self.observations, 10, 5, 1]

    @property
    def _critic(self) -> list[int]:
        return [self.observations + 1, 5, 5, 1]


def threshold(action: float, low: float, high: float) -> float:
    """Return the clipping threshold of an action in [-1, 1]: low (high/low)^((action + 1)/2)."""
    return low * (high / low) ** ((action + 1) / 2)


def dense(flat: Tensor, widths: list[int], x: Tensor) -> Tensor:
    """Evaluate a network of affine layers of these widths, with tanh between them, at its flat parameters."""
    weights, biases = split_layers(flat, widths)
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.addmm(bias, x.tanh() if place else x, weight.T)
    return x


def split_layers(flat: Tensor, widths: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Split the flat parameters of `dense` into weight matrices and biases, which alternate."""
    sizes = [size for before, after in pairwise(widths) for size in (before * after, after)]
    pieces = flat.split(sizes)
    matrices = [piece.view(after, -1) for piece, after in zip(pieces[::2], widths[1:], strict=True)]
    return matrices, list(pieces[1::2])


def initial(widths: list[int], random: Generator) -> Tensor:
    """Draw flat parameters of `dense`: uniform within 1/sqrt(inputs) of zero, as torch's linear layers."""
    pieces = []
    for before, after in pairwise(widths):
        drawn = 2 * torch.rand(before * after + after, generator=random) - 1
        pieces.append(drawn / math.sqrt(before))
    return torch.cat(pieces)


def blank(flat: Tensor) -> dict[str, Tensor]:
    """Return Adam's memory before the first step."""
    return {"first": torch.zeros_like(flat), "second": torch.zeros_like(flat), "count": torch.zeros(())}


def adam_step(flat: Tensor, slope: Tensor, memory: dict[str, Tensor], rate: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return parameters and Adam's memory after one step; the arguments are not changed."""
    flat, memory = flat.clone(), {name: kept.clone() for name, kept in memory.items()}
    adam(flat, slope, (memory["first"], memory["second"], memory["count"]), rate)
    return flat, memory
