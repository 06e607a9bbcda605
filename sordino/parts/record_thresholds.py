"""Rules for each client's clipping threshold at record level, from one participation to the next.

A rule is a part that record-level methods take (`RecordClipped` of `methods/bases.py`): `--set clipping=quantile`, and
its own settings as `--set clipping.quantile=0.7`. PAC-DP, which has thresholds of its own, and rPDP-FL take none. A
rule keeps one threshold for each client in the server's state, as `clips`; each client learns only its own. A private
rule reads noised means over validation records, which are disjoint from the training records, or what follows from the
noisy gradients themselves, which have been paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from sordino.method import ADDED_LATER, Federation, Positive, Replies, Share
from sordino.parts.ddpg import Ddpg, threshold
from sordino.parts.ppo import observation
from sordino.privacy.budget.allowance import Outlook
from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Average, Bare, Follows, Releases
from sordino.util.selectable import Named

State = dict[str, Any]
LEAST_CLIP, LARGEST_CLIP = 1e-6, 1e6
"""Range of a threshold that has no limits of its own."""


class RecordThreshold:
    """A rule for the thresholds; this one keeps them as they are."""

    def planned(self, outlook: Outlook) -> tuple[RecordThreshold, list[str]]:
        """Return the rule that the records' budget can pay for, and sentences on the choice."""
        return self, []

    def unprotected(self) -> RecordThreshold:
        """Return the rule for runs without privacy, where nothing is clipped and no record is set aside."""
        return Fixed()

    def begin(self, fed: Federation, clip: float) -> State:
        """Return the rule's state before the first round, with the `clips` of all clients."""
        return {"clips": torch.full((fed.schedule.clients,), clip)}

    def releases(self, bare: bool) -> Releases:
        """Return what each client sends for this rule besides its model; `bare` as published, without noise."""
        return {}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        """Return a client's values for `releases`; it trained `model` from `start`."""
        return {}

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        """Return the rule's state after a round whose clients sent `got`."""
        return state


@dataclass(frozen=True)
class Fixed(RecordThreshold):
    """A constant threshold, equal for all clients."""


@dataclass(frozen=True)
class Quantile(RecordThreshold):
    """Geometric adaptation to a quantile of the records' gradient norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    Each client tells, noised, which share of records that it has set aside have gradients within its threshold C at
    the model it received; C <- C exp(rate (quantile - share)). They are disjoint from the training records, so this
    takes nothing of their budget.
    """

    quantile: Share = 0.5
    """Quantile of the gradient norms that the threshold aims at. Paper: 0.5."""
    rate: Positive = 0.2
    """Step of the logarithm of the threshold for a share that is off by one. Paper: 0.2, over hundreds of rounds."""
    validation: Share = 0.1
    """The share of a client's records set aside for it. The paper counts in the batch itself, of clients."""
    low: Positive = LEAST_CLIP
    """The smallest threshold."""
    high: Positive = LARGEST_CLIP
    """The largest."""

    def releases(self, bare: bool) -> Releases:
        return {"within": Average(0.0, 1.0, held_out=self.validation)}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"within": data.within(start)}

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        within = got.rows("within").squeeze(1)
        known = within.nan_to_num(self.quantile).clamp(0, 1)  # a client of a single record has none to measure
        clips, who = state["clips"].clone(), list(got.who)
        moved = clips[who] * torch.exp(self.rate * (self.quantile - known))
        clips[who] = moved.clamp(self.low, self.high)
        return {**state, "clips": clips}


@dataclass(frozen=True)
class Percentile(Quantile):
    """Near a high percentile of single records' gradient norms, followed quickly.

    DP-AGR (`NoisyPercentile`) takes a percentile of the norms of noisy gradients, which costs nothing and follows their
    noise. This one pays for noised shares of records that were set aside, and rises where less than nine tenths of
    these are within it.
    """

    quantile: Share = 0.9
    """The share of records whose gradients are to be within the threshold."""
    rate: Positive = 1.0
    """Step of the logarithm of the threshold for a share that is off by one: clients take part a few times only."""
    validation: Share = 0.2
    """The share of a client's records set aside to be measured."""
    low: Positive = 0.1
    """The smallest threshold."""
    high: Positive = 10.0
    """The largest."""


TOLD = 20
"""Norms of its noisy gradients that a client tells of a round."""


@dataclass(frozen=True)
class NoisyPercentile(RecordThreshold):
    """A percentile of the norms of a client's noisy gradients in its last rounds: DP-AGR, as the paper of AdaDP-CFL
    describes it; no code is known.

    After each round a client sends 20 evenly spaced quantiles of the norms of its noisy mean gradients
    g~ = g + N(0, (z C / B)^2). They are functions of what was paid for, and cost nothing. Its next threshold is
    the percentile of all that it told in its last rounds. With d parameters abs(g~)^2 is about
    abs(g)^2 + d (z C / B)^2: where z sqrt(d) / B is above one, the published rule multiplies C by it from turn to turn;
    where it is below one, C falls towards the mean gradients. `debias` takes the noise's part off first:
    sqrt(max(abs(g~)^2 - d (z C / B)^2, (0.05 C)^2)).
    """

    percentile: Share = 0.9
    """The percentile of norms that is the next threshold. DP-AGR: 0.9."""
    rounds: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of a client's last rounds whose norms count. DP-AGR: 5."""
    debias: bool = False
    """Whether the noise's expected part is taken off each squared norm. DP-AGR: no."""
    low: Positive = LEAST_CLIP
    """The smallest threshold."""
    high: Positive = LARGEST_CLIP
    """The largest."""

    def begin(self, fed: Federation, clip: float) -> State:
        unknown = torch.full((fed.schedule.clients, self.rounds, TOLD), torch.nan)
        return {**super().begin(fed, clip), "norms": unknown}

    def releases(self, bare: bool) -> Releases:
        return {"norms": Follows("update", entries=TOLD)}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        norms = data.noisy_norms
        if self.debias:
            noise = torch.as_tensor(data.deviation, device=norms.device).square().expand(data.layout.size).sum()
            least = 0.05 * torch.as_tensor(data.clip, device=norms.device)
            norms = (norms.square() - noise).clamp(min=least.square()).sqrt()
        places = (torch.arange(TOLD, device=norms.device) + 0.5) / TOLD * norms.shape[0]
        return {"norms": norms.sort().values[places.long()]}

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        who, told = list(got.who), got.rows("norms")
        # A row that was not finite left as zeros, and says nothing.
        told = torch.where(told > 0, told, torch.nan).reshape(len(who), 1, TOLD)
        norms, clips = state["norms"].clone(), state["clips"].clone()
        norms[who] = torch.cat([norms[who][:, 1:], told], dim=1)
        found = norms[who].flatten(1).nanquantile(self.percentile, dim=1)
        clips[who] = torch.where(found.isnan(), clips[who], found.clamp(self.low, self.high))
        return {**state, "norms": norms, "clips": clips}


@dataclass(frozen=True)
class Median(RecordThreshold):
    """The median of the records' gradient norms at a client's last participation (Geyer et al. 2017).

    Medians leave as they are: epsilon is infinite.
    """

    def releases(self, bare: bool) -> Releases:
        return {"norm": Bare("the median rule needs the median norm of each client's records as it is")}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": torch.linalg.vector_norm(data.raw_norms(model), dim=1).median()}

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        clips = state["clips"].clone()
        clips[list(got.who)] = got.rows("norm").clamp(LEAST_CLIP, LARGEST_CLIP).reshape(len(got.who), *clips.shape[1:])
        return {"clips": clips}


@dataclass(frozen=True)
class TensorMedians(Median):
    """The median rule for each tensor by itself; before a client's first participation, thresholds whose norm is the
    first C."""

    def begin(self, fed: Federation, clip: float) -> State:
        tensors = len(fed.layout.sizes)
        return {"clips": torch.full((fed.schedule.clients, tensors), clip / tensors**0.5)}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": data.raw_norms(model, tensors=True).median(dim=0).values}


@dataclass(frozen=True)
class Learned(RecordThreshold):
    """Chosen by a DDPG agent from how a client's loss and accuracy develop (AdaDP-CFL)."""

    low: Positive = 0.1
    """The smallest threshold that the agent may choose."""
    high: Positive = 10.0
    """The largest."""
    agents: Literal["shared", "own"] = "shared"
    """One agent for all clients, or one for each."""
    validation: Share = 0.2
    """The share of a client's records set aside for the agent's metrics."""
    loss_bound: Positive = 4.0
    """Losses are held to [0, this] before they are averaged."""
    effect: Positive = 0.1
    """The smallest difference in reward between small and large thresholds that matters, at weights of one; it is
    multiplied by their mean. Where noise would hide it, C stays fixed instead; a large number insists on the agent."""
    loss_weight: Positive = field(default=1.0, metadata=ADDED_LATER)
    """Weight in the reward of the loss's decrease between two turns: beta_1. Paper: any positive number; released
    code: 1."""
    accuracy_weight: Positive = field(default=1.0, metadata=ADDED_LATER)
    """Weight in the reward of the accuracy's increase between two turns, from 0 to 1: beta_2. Paper: any positive
    number; released code: 1 for an accuracy in percent, which is 100 here."""

    def planned(self, outlook: Outlook) -> tuple[RecordThreshold, list[str]]:
        deviation = self.reward_deviation(outlook)
        rewards = max(1, (len(outlook.sizes) if self.agents == "shared" else 1) * (outlook.turns - 1))
        # Twice the standard error of the difference between two halves of the rewards.
        visible = 2 * 2 * deviation / math.sqrt(rewards)
        told = f"The noise in each of the agent's {rewards:,} rewards will have a deviation of {deviation:.2g}"
        matters = self.effect * (self.loss_weight + self.accuracy_weight) / 2
        if visible <= matters:
            return self, [f"{told}: differences between thresholds from {visible:.2g} on can be learned."]
        return Fixed(), [
            f"{told}: differences between thresholds below {visible:.2g} could not be learned, and {matters:g} "
            "matters. So there is no agent: C stays fixed, and all records are trained on. More clients or records, "
            "a larger epsilon, or clipping.effect change that."
        ]

    def reward_deviation(self, outlook: Outlook) -> float:
        """Return the standard deviation of the noise in a reward, the weighted change of a loss and of an accuracy
        between two turns."""
        plan = outlook.plan(RecordNeeds(means=2, held_out=self.validation))
        loss, accuracy = (release.spread(int(plan.validation[0])) for release in self._averages().values())
        spread = math.hypot(self.loss_weight * loss, self.accuracy_weight * accuracy)
        return math.sqrt(2) * float(plan.mean_multipliers[0]) * spread

    def begin(self, fed: Federation, clip: float) -> State:
        clients = fed.schedule.clients
        seen = {"seen": torch.full((clients, 2), torch.nan), "actions": torch.zeros(clients), "agents": {}}
        return {**super().begin(fed, clip), **seen}

    def releases(self, bare: bool) -> Releases:
        if bare:
            why = "the agent reads each client's {} as it is"
            return {name: Bare(why.format(name)) for name in ("loss", "accuracy")}
        return dict(self._averages())

    def _averages(self) -> dict[str, Average]:
        ranges = {"loss": self.loss_bound, "accuracy": 1.0}
        return {name: Average(0.0, high, held_out=self.validation) for name, high in ranges.items()}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return dict(zip(("loss", "accuracy"), data.raw_metrics(model) if bare else data.judged(model), strict=True))

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        seen = zip(got.who, got.rows("loss"), got.rows("accuracy"), strict=True)
        for client, loss, accuracy in seen:
            state = self._acted(state, client, observation(loss, accuracy, self.loss_bound), fed)
        return state

    def _acted(self, state: State, client: int, now: Tensor, fed: Federation) -> State:
        """Reward the client's last action, learn from it, and choose the next."""
        # Every client's first action is drawn at random: one cycle, in which all have acted once.
        clients = fed.schedule.clients
        agent, name = (Ddpg(warm=clients), "shared") if self.agents == "shared" else (Ddpg(warm=1), str(client))
        random = fed.random("agent", client)
        mind = state["agents"].get(name) or agent.begin(fed.random("begin", name))
        before = state["seen"][client].clone()
        if not before.isnan().any():
            gains = self.loss_weight * (before[0] - now[0]), self.accuracy_weight * (now[1] - before[1])
            reward = float(sum(gains))  # Eq. 4.9
            mind = agent.remember(mind, before, float(state["actions"][client]), reward, now, random)
        action, mind = agent.act(mind, now, random)
        changed = {"clips": threshold(action, self.low, self.high), "actions": action, "seen": now}
        kept = {key: state[key].clone() for key in changed}
        for key, value in changed.items():
            kept[key][client] = value
        return {**state, **kept, "agents": {**state["agents"], name: mind}}


RULES = {
    "fixed": Fixed,
    "quantile": Quantile,
    "median": Median,
    "percentile": Percentile,
    "dp-agr": NoisyPercentile,
}
RecordClipping = Annotated[RecordThreshold, Named(RULES)]
"""Rule for each client's threshold: `fixed`; `quantile` (private, Andrew et al.); `median` (Geyer et al.: epsilon
is infinite); `percentile` (private, of single records); `dp-agr` (of noisy gradients, at no cost)."""
