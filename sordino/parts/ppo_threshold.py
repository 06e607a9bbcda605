"""The clipping threshold chosen by a learning agent (ACDP-pFSD, Section 4.3 and Algorithm 2).

The agent's state is (loss, accuracy) of the global model, its reward how much both improved (Eq. 11 to 13), its action
the threshold. Where these two numbers come from decides what is private:

- `public`: the model on public records at the server. Nothing of the clients is read.
- `metrics`: means of the clients' losses and accuracies, held to a range, noised and paid for.
- `bare`: the clients' raw metrics, trimmed to the 10th to 80th percentile, as published. Epsilon is infinite.

An action is rewarded for the model after the update that it clipped and noised. The server judges that model at the
end of the same round. Clients meet it at the beginning of the next: what they tell rewards the action before, and that
action's next state is the one in which the action now in force was chosen. Transitions follow on each other: the next
state of one is the state of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from sordino.learning.records import Records, cross_entropies
from sordino.method import LEAST_SHARE, Budget, Count, Federation, Message, Positive, Replies, Schedule
from sordino.parts.agents.ppo import Ppo, observation
from sordino.parts.thresholds import Fixed, State, Threshold
from sordino.privacy.release import Bare, Number, Releases, Update

WORST = 1e6
"""The largest loss that an agent is shown: beyond it the squares in its gradients leave float32."""
ENOUGH_CLIENTS = 500
"""From this many clients on, noised means of their metrics are worth reading."""
RANDOM_ACTIONS = 2
"""So many actions are drawn uniformly before the policy is asked (Algorithm 2, line 1)."""


@dataclass(frozen=True)
class LearnedThreshold(Threshold):
    """C = C_0 low^(1 - a) high^a, with the action a in (0, 1) chosen by PPO and C_0 the method's `clip`."""

    low: Positive = 0.05
    """The smallest threshold that the agent may choose, as a multiple of the method's `clip`."""
    high: Positive = 2.0
    """The largest threshold that the agent may choose, as a multiple of the method's `clip`."""
    reads: Literal["auto", "public", "metrics", "bare"] = "auto"
    """What the agent learns from: `public` records at the server (free), noised means of the clients' `metrics` (paid
    for), `bare` metrics (published; epsilon is infinite), or `auto`: public below 500 clients, where noised means would
    be useless."""
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
        logits = data.logits(message["global"])
        losses, weight = cross_entropies(logits, data.y), data.weight
        right = (logits.argmax(dim=1) == data.y).to(update.dtype)
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
        # The rewarded action and the state in which the next one is chosen: now, or when the one in force was.
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
        """The threshold that an action stands for."""
        return first * self.low * (self.high / self.low) ** action

    def _drawn(self, seen: Tensor, random: Generator) -> State:
        """An action drawn uniformly."""
        action = float(torch.rand((), generator=random))
        return {"seen": seen, "action": action, "log_density": 0.0, "by_policy": False}

    def _seen(self, got: Replies, fed: Federation, model: Tensor) -> Tensor | None:
        """Loss and accuracy: of the `model` after this round, or as the clients met it at the round's beginning."""
        if self.reads == "bare":
            return observation(trimmed_mean(got.rows("loss")), trimmed_mean(got.rows("accuracy")), WORST)
        if self.reads == "metrics":
            if not got.has("loss"):
                return None
            return observation(got.mean("loss"), got.mean("accuracy"), min(self.loss_bound, WORST))
        loss, accuracy = fed.judge(model)
        return observation(torch.tensor(loss), torch.tensor(accuracy), WORST)


def trimmed_mean(values: Tensor, low: float = 0.1, high: float = 0.8) -> Tensor:
    """The mean of the values between two percentiles."""
    ordered = values.flatten().sort().values
    begin, end = int(low * len(ordered)), max(int(low * len(ordered)) + 1, round(high * len(ordered)))
    return ordered[begin:end].mean()
