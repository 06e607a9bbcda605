"""How each client's clipping threshold is chosen at record level, from one participation to the next.

A rule keeps one threshold for each client in the server's state, as `clips`. Each client learns its own only. A rule
that is to be private reads what was made of noisy gradients, or noised means over validation records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sordino.method import Count, Federation, Positive, Replies, Share
from sordino.parts.agents.ddpg import Ddpg, threshold
from sordino.parts.agents.ppo import observation
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Average, Bare, Releases

State = dict[str, Any]


class RecordThreshold:
    """A rule for the thresholds; this one keeps them as they are."""

    def begin(self, fed: Federation, clip: float) -> State:
        """What is kept before the first round, with the `clips` of all clients."""
        return {"clips": torch.full((fed.schedule.clients,), clip)}

    def releases(self, bare: bool) -> Releases:
        """What each client must send for this rule, besides its model; `bare` as published, without noise."""
        return {}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        """What a client sends, under the names of `releases`; `model` is its trained model."""
        return {}

    def following(self, state: State, members: Sequence[int], got: Replies, fed: Federation) -> State:
        """What is kept once `members` have taken part; `got` has the mean `norm` of their noisy gradients."""
        return state


@dataclass(frozen=True)
class Fixed(RecordThreshold):
    """The same threshold for every client, all the time."""


@dataclass(frozen=True)
class Percentile(RecordThreshold):
    """The 90th percentile of a client's gradient norms over its last participations, from noisy gradients (DP-AGR)."""

    low: Positive = 0.1
    """The smallest threshold."""
    high: Positive = 10.0
    """The largest."""
    patience: Count = 5
    """Over how many participations it looks back."""

    def begin(self, fed: Federation, clip: float) -> State:
        return {**super().begin(fed, clip), "norms": torch.full((fed.schedule.clients, self.patience), torch.nan)}

    def following(self, state: State, members: Sequence[int], got: Replies, fed: Federation) -> State:
        norms, clips = state["norms"].clone(), state["clips"].clone()
        for client, (norm,) in zip(members, got.rows("norm"), strict=True):
            norms[client] = norms[client].roll(1)
            norms[client, 0] = norm
            clips[client] = norms[client].nanquantile(0.9).clamp(self.low, self.high)
        return {"clips": clips, "norms": norms}


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

    def begin(self, fed: Federation, clip: float) -> State:
        clients = fed.schedule.clients
        seen = {"seen": torch.full((clients, 2), torch.nan), "actions": torch.zeros(clients), "agents": {}}
        return {**super().begin(fed, clip), **seen}

    def releases(self, bare: bool) -> Releases:
        if bare:
            why = "the agent reads each client's {} as it is"
            return {name: Bare(why.format(name)) for name in ("loss", "accuracy")}
        ranges = {"loss": (0.0, self.loss_bound), "accuracy": (0.0, 1.0)}
        return {name: Average(low, high, held_out=self.validation) for name, (low, high) in ranges.items()}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return dict(zip(("loss", "accuracy"), data.raw_metrics(model) if bare else data.judged(model), strict=True))

    def following(self, state: State, members: Sequence[int], got: Replies, fed: Federation) -> State:
        seen = zip(members, got.rows("loss"), got.rows("accuracy"), strict=True)
        for client, loss, accuracy in seen:
            state = self._acted(state, client, observation(loss, accuracy, self.loss_bound), fed)
        return state

    def _acted(self, state: State, client: int, now: Tensor, fed: Federation) -> State:
        """Reward the client's last action, learn from it, and choose the next."""
        # An agent of one's own has ten participations or so to learn from: it may explore at random twice.
        agent, name = (Ddpg(), "shared") if self.agents == "shared" else (Ddpg(warm=2), str(client))
        random = fed.random("agent", client)
        mind = state["agents"].get(name) or agent.begin(fed.random("begin", name))
        before = state["seen"][client].clone()
        if not before.isnan().any():
            reward = float((before[0] - now[0]) + (now[1] - before[1]))
            mind = agent.remember(mind, before, float(state["actions"][client]), reward, now, random)
        action, mind = agent.act(mind, now, random)
        changed = {"clips": threshold(action, self.low, self.high), "actions": action, "seen": now}
        kept = {key: state[key].clone() for key in changed}
        for key, value in changed.items():
            kept[key][client] = value
        return {**state, **kept, "agents": {**state["agents"], name: mind}}
