"""Clipping threshold chosen by a PPO agent: the agent and the rule (ACDP-pFSD, Section 4.3 and Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.distributions import Beta
from torch.func import functional_call
from torch.nn import functional

from sordino.learning.descent import adam
from sordino.learning.network import Records
from sordino.learning.parameters import Layout, flatten
from sordino.method import LEAST_SHARE, Budget, Count, Federation, Message, Positive, Replies, Schedule
from sordino.parts.thresholds import Fixed, State, Threshold
from sordino.privacy.release import Bare, Number, Releases, Update


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
    """Largest distance of the probability ratio from 1 that is rewarded."""
    epochs: int = 10
    """Passes over the replay in an update: the paper's M."""
    replay: int = 10
    """Transitions gathered before an update: the paper's |D_P|."""
    actor_rate: float = 5e-3
    """Learning rate of the policy. The released demonstration has 1e-3, which a run's few updates hardly move."""
    critic_rate: float = 1e-2
    """Learning rate of the critic: the released demonstration's."""

    def begin(self, random: Generator) -> State:
        """Return the state of a new agent."""
        seed = int(torch.randint(0, 2**31, (1,), generator=random))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks = {"actor": flatten(self._actor()), "critic": flatten(self._critic())}
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
        """Draw an action in (0, 1) from the policy; return it and its log-density."""
        policy = self.policy(state["actor"], observation.unsqueeze(0))
        one = torch._standard_gamma(policy.concentration1, generator=random)
        other = torch._standard_gamma(policy.concentration0, generator=random)
        action = (one / (one + other)).clamp(1e-4, 1 - 1e-4)
        return float(action), float(policy.log_prob(action))

    def mean_action(self, state: State, observation: Tensor) -> float:
        """Return the policy's mean."""
        return float(self.policy(state["actor"], observation.unsqueeze(0)).mean)

    def remember(
        self, state: State, before: Tensor, action: float, log_density: float, reward: float, after: Tensor
    ) -> State:
        """Return the state with one more transition, updated if the replay is full."""
        row = torch.cat([before, torch.tensor([action, log_density, reward]), after])
        state = {**state, "transitions": torch.cat([state["transitions"], row.unsqueeze(0)])}
        return self.updated(state) if len(state["transitions"]) >= self.replay else state

    def updated(self, state: State) -> State:
        """Return the state after learning from the replay, which is then empty."""
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
        """Return the distribution of the action for each observation; with both parameters above one it has one
        peak."""
        out = functional.softplus(_outputs(self._actor(), flat, observations)) + 1
        return Beta(out[:, 0], out[:, 1])

    def value(self, flat: Tensor, observations: Tensor) -> Tensor:
        """Return the critic's value of each observation."""
        return _outputs(self._critic(), flat, observations).squeeze(1)

    def _actor(self) -> nn.Module:
        wide = self.hidden
        layers = [nn.Linear(self.observations, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 2)]
        return nn.Sequential(*layers)

    def _critic(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.observations, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))


def _outputs(module: nn.Module, flat: Tensor, observations: Tensor) -> Tensor:
    """The outputs of a network with the parameters `flat`, as a differentiable function of these."""
    return functional_call(module, Layout.of(module).named(flat), (observations,))


def observation(loss: Tensor, accuracy: Tensor, worst: float) -> Tensor:
    """Return an agent's observation: a loss clamped to [0, worst] and an accuracy clamped to [0, 1].

    A model that has diverged, with a loss of `nan` or infinity, counts as the worst loss; an accuracy of `nan` as 0.
    """
    held = loss.reshape(1).nan_to_num(worst, worst, 0.0).clamp(0, worst)
    return torch.cat([held, accuracy.reshape(1).nan_to_num(0.0).clamp(0, 1)])


def advantages(errors: Tensor, decay: float) -> Tensor:
    """Estimate advantages from the temporal-difference errors of consecutive steps (generalized advantage
    estimation)."""
    found = torch.empty_like(errors)
    running = torch.zeros(())
    for place in range(len(errors) - 1, -1, -1):
        running = errors[place] + decay * running
        found[place] = running
    return found


def gradient(flat: Tensor, loss: Any) -> Tensor:
    """Return the gradient of a loss at `flat`."""
    at = flat.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(at), at)
    return slope


WORST = 1e6
"""The largest loss that an agent is shown: beyond it the squares in its gradients leave float32."""
ENOUGH_CLIENTS = 500
"""Number of clients from which noised means of their metrics are worth reading."""
RANDOM_ACTIONS = 2
"""Number of actions that are drawn uniformly before the policy is asked (Algorithm 2, line 1)."""


@dataclass(frozen=True)
class LearnedThreshold(Threshold):
    """C = C_0 low^(1 - a) high^a, with the action a in (0, 1) chosen by PPO and C_0 the method's `clip`."""

    low: Positive = 0.05
    """The smallest threshold that the agent may choose, as a multiple of the method's `clip`."""
    high: Positive = 2.0
    """The largest threshold that the agent may choose, as a multiple of the method's `clip`."""
    reads: Literal["auto", "public", "metrics", "bare"] = "auto"
    """Data that the agent learns from: `public` records at the server (free), noised means of the clients' `metrics`
    (paid for), `bare` metrics (published; epsilon is infinite), or `auto`: public below 500 clients, where noised means
    would be useless."""
    share: Annotated[float, Field(ge=LEAST_SHARE, le=0.5 - LEAST_SHARE, allow_inf_nan=False)] = 0.025
    """The share of the budget that each of the two noised metrics takes."""
    every: Count = 1
    """The noised metrics leave in the first round and then in every round whose number this divides."""
    loss_bound: Positive = 4.0
    """Losses are held to [0, this] before they are noised."""
    agent: Ppo = field(default_factory=Ppo, init=False)

    @property
    def reads_public(self) -> bool:  # type: ignore[override]
        return self.reads in ("public", "auto")  # before it is settled, it may

    def settled(self, clients: int) -> Threshold:
        if self.reads != "auto":
            return self
        return replace(self, reads="public" if clients < ENOUGH_CLIENTS else "metrics")

    def unprotected(self) -> Threshold:
        return Fixed()  # no action would have an effect to learn from

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        if self.reads == "bare":
            return []
        deviation = budget.multiplier / self.share**0.5 * self.loss_bound / 2 / schedule.cohort
        noise = f"the noise of a mean loss would be {deviation:.2g}, on losses of 0 to {self.loss_bound:g}"
        if self.reads == "public":
            return [
                f"The agent learns from public records, which cost nothing: with {schedule.cohort} clients {noise}."
            ]
        return [f"The agent learns from noised means of the clients' metrics, which are paid for: {noise}."]

    def begin(self, fed: Federation, clip: float) -> State:
        unseen = torch.full((2,), torch.nan)
        choice = self._drawn(unseen, fed.random("explore"))
        return {
            "clip": self.threshold(choice["action"], clip),
            "first": clip,
            "agent": self.agent.begin(fed.random("agent")),
            "actions": 1,
            "seen": unseen,
            "choice": choice,
            "earlier": choice,
            "waited": False,
        }

    def releases(self, at: str | None = None) -> Releases:
        if self.reads == "bare":
            why = "the agent reads each client's {} as it is"
            names = ("loss", "accuracy")
            return {"update": Update(clip="clip", at=at)} | {name: Bare(why.format(name)) for name in names}
        if self.reads == "metrics":
            return {
                "update": Update(clip="clip", share=1 - 2 * self.share, at=at),
                "loss": Number(0.0, self.loss_bound, self.share, self.every),
                "accuracy": Number(0.0, 1.0, self.share, self.every),
            }
        return {"update": Update(clip="clip", at=at)}

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        if self.reads not in ("bare", "metrics"):
            return {"update": update}
        outputs = data.logits(message["global"])
        losses, weight = data.task.losses(outputs, data.y), data.weight
        right = data.task.right(outputs, data.y).to(update.dtype)
        return {
            "update": update,
            "loss": (losses * weight).sum() / weight.sum(),
            "accuracy": (right * weight).sum() / weight.sum(),
        }

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        seen = self._seen(got, fed, model)
        if seen is None:  # no metrics were due in this round: go on with the same threshold
            return {**state, "waited": True}
        agent, before = state["agent"], state["seen"]
        # The action that `seen` rewards, and the state after it. What was measured under the threshold in force rewards
        # the last choice; clients' metrics from the round's beginning reward the choice before it.
        in_force = self.reads_public or state["waited"]
        rewarded, after = (state["choice"], seen) if in_force else (state["earlier"], state["choice"]["seen"])
        if rewarded["by_policy"]:
            reward = float((before[0] - seen[0]) + (seen[1] - before[1]))  # Eq. 11 to 13
            action, log_density = rewarded["action"], rewarded["log_density"]
            agent = self.agent.remember(agent, rewarded["seen"], action, log_density, reward, after)
        if state["actions"] < RANDOM_ACTIONS:
            choice = self._drawn(seen, fed.random("explore"))
        else:
            action, log_density = self.agent.act(agent, seen, fed.random("act"))
            choice = {"seen": seen, "action": action, "log_density": log_density, "by_policy": True}
        return {
            "clip": self.threshold(choice["action"], state["first"]),
            "first": state["first"],
            "agent": agent,
            "actions": state["actions"] + 1,
            "seen": seen,
            "choice": choice,
            "earlier": state["choice"],
            "waited": False,
        }

    def threshold(self, action: float, first: float) -> float:
        """Return the threshold of an action."""
        return first * self.low * (self.high / self.low) ** action

    def _drawn(self, seen: Tensor, random: Generator) -> State:
        """Return a uniformly drawn action."""
        action = float(torch.rand((), generator=random))
        return {"seen": seen, "action": action, "log_density": 0.0, "by_policy": False}

    def _seen(self, got: Replies, fed: Federation, model: Tensor) -> Tensor | None:
        """Return loss and accuracy: of the `model` after this round, or as the clients measured them at its
        beginning."""
        if self.reads == "bare":
            return observation(trimmed_mean(got.rows("loss")), trimmed_mean(got.rows("accuracy")), WORST)
        if self.reads == "metrics":
            if not got.has("loss"):
                return None
            return observation(got.mean("loss"), got.mean("accuracy"), min(self.loss_bound, WORST))
        loss, accuracy = fed.judge(model)
        return observation(torch.tensor(loss), torch.tensor(accuracy), WORST)


def trimmed_mean(values: Tensor, low: float = 0.1, high: float = 0.8) -> Tensor:
    """Return the mean of the values between two percentiles, given as shares."""
    ordered = values.flatten().sort().values
    begin, end = int(low * len(ordered)), max(int(low * len(ordered)) + 1, round(high * len(ordered)))
    return ordered[begin:end].mean()
