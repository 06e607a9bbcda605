"""The clipping threshold chosen by a learning agent (ACDP-pFSD, Section 4.3 and Algorithm 2).

The agent's state is (loss, accuracy), its reward how much both improved (Eq. 11 to 13), its action the threshold.
Where these two numbers come from decides what is private:

- `public`: the global model on public records at the server. Nothing of the clients is read.
- `metrics`: means of the clients' own losses and accuracies, held to a range, noised and paid for.
- `bare`: the clients' raw metrics, trimmed to the 10th to 80th percentile, as published. Epsilon is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from sordino.learning.records import Records, cross_entropies
from sordino.method import LEAST_SHARE, Budget, Count, Federation, Message, Positive, Replies, Schedule
from sordino.parts.agents.ppo import Ppo, observation
from sordino.parts.thresholds import State, Threshold
from sordino.privacy.release import Bare, Number, Releases, Update

WORST = 1e6
"""The largest loss that an agent is shown: beyond it the squares in its gradients leave float32."""
ENOUGH_CLIENTS = 500
"""From this many clients on, noised means of their metrics are worth reading."""


@dataclass(frozen=True)
class LearnedThreshold(Threshold):
    """C = low + (high - low) a, with the action a in (0, 1) chosen by PPO."""

    low: Positive = 0.05
    """The smallest threshold that the agent may choose."""
    high: Positive = 2.0
    """The largest threshold that the agent may choose."""
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
        return self.reads == "public"

    def settled(self, clients: int) -> Threshold:
        if self.reads != "auto":
            return self
        return replace(self, reads="public" if clients < ENOUGH_CLIENTS else "metrics")

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
        action = min(max((clip - self.low) / (self.high - self.low), 1e-4), 1 - 1e-4)
        state = {"agent": self.agent.begin(fed.random("agent")), "rounds": 0}
        return {**state, "clip": clip, "action": action, "log_density": 0.0, "seen": torch.full((2,), torch.nan)}

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
        logits = data.logits(model)
        weight = torch.ones_like(data.y, dtype=update.dtype) if data.valid is None else data.valid
        losses = cross_entropies(logits, data.y)
        right = (logits.argmax(dim=1) == data.y).to(update.dtype)
        return {
            "update": update,
            "loss": (losses * weight).sum() / weight.sum(),
            "accuracy": (right * weight).sum() / weight.sum(),
        }

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        seen = self._seen(got, fed, model)
        if seen is None:  # no metrics were due in this round: go on with the same threshold
            return {**state, "rounds": state["rounds"] + 1}
        agent = state["agent"]
        before = state["seen"]
        if state["rounds"] >= 2:
            reward = float((before[0] - seen[0]) + (seen[1] - before[1]))  # Eq. 11 to 13
            agent = self.agent.remember(agent, before, state["action"], state["log_density"], reward, seen)
        if state["rounds"] < 1:  # the first rounds explore at random (Algorithm 2, line 1)
            action, log_density = float(torch.rand((), generator=fed.random("explore"))), 0.0
        else:
            action, log_density = self.agent.act(agent, seen, fed.random("act"))
        clip = self.low + (self.high - self.low) * action
        kept = {"agent": agent, "rounds": state["rounds"] + 1, "clip": clip, "action": action}
        return {**kept, "log_density": log_density, "seen": seen}

    def _seen(self, got: Replies, fed: Federation, model: Tensor) -> Tensor | None:
        """Loss and accuracy after this round."""
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
