"""Tier 1 of an audit, at client level: membership attacks that tell whether one client sent the largest message that it
may (the canary), or nothing.

The attack knows everything but that: all other messages before noise, the method's code, every message of the server.
What it looks at is made by the gate of a recorded run, for each of its questions, with the releases, bounds and noise
that were declared there, and, for sums, by the gate's own mean. A message is passed many times side by side
(`Tiled`): each copy is a trial with noise of its own. The canary is three times as long as it may be, in one place of
every tensor of the network and every block of the message, so that a threshold that is not applied, or applied to
each tensor alone, shows; its sign changes from round to round, so that noise that is used twice cancels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.auditing.findings import SAID, SURE, Attack, Scores
from sordino.auditing.recorded_run import Recorded, other_noise
from sordino.federation.transcript import Exchange, Reading
from sordino.privacy.gate import Gate
from sordino.privacy.release import Bounded, Cover, Public, Release
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View, known_shares

EXCESS_LENGTH = 3.0
"""Length of a canary over the length that is allowed."""
FULL_CANARY_ENTRIES = 64
"""Most entries of a message that has the canary in all of them."""
MAX_DRAWS = 4e8
"""Numbers of noise that one audit draws at the most, roughly."""
DRAWS_HELD = 4e6
"""Numbers of noise that are held in memory at once, roughly."""
QUESTION_STRIDE = 1_000_000_007
"""Distance between the numbers of questions that one question is attacked under, larger than any run: trials drawn
apart have noise of their own."""


@dataclass(frozen=True)
class Tiled(Release):
    """A release whose message is passed many times side by side: the places where the canary is, one block each.

    What the step hands over is a coin for each client and copy: whether that copy holds the canary.
    """

    of: Release
    places: Tensor
    """The entries that the attack looks at."""
    canary: Tensor
    """Messages of the clients with the canary: (clients, width), not yet bounded."""
    null: Tensor
    """Messages of the clients without the canary."""
    entries: int
    """Number of entries of a whole message."""
    unit: ClassVar[Unit | None] = Unit.CLIENT

    def opened(self, value: Any, public: Public) -> Tensor:
        coins: Tensor = value
        return coins

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        loud, quiet = self.signals(public)
        entries = torch.where(rows.unsqueeze(1) > 0, loud.unsqueeze(2), quiet.unsqueeze(2))
        return Bounded(entries.reshape(len(rows), -1), 0)

    def signals(self, public: Public) -> tuple[Tensor, Tensor]:
        """Bounded values of the canary and of nothing, where the attack looks: (clients, places)."""
        loud, quiet = (self.of.bounded(rows, public).rows[:, self.places] for rows in (self.canary, self.null))
        return loud, quiet

    def cover(self, width: int, allowance: Any, public: Public) -> Cover:
        copies = width // len(self.places)
        whole = self.of.cover(self.entries, allowance, public)
        assert whole is not None
        deviations = entrywise(whole, len(public.clients))[:, self.places]
        bounds = torch.full_like(deviations, float(whole.bounds.square().sum(dim=1).max().sqrt()) * math.sqrt(copies))
        same = bool((deviations == deviations[:1]).all())
        rows = slice(0, 1) if same else slice(None)
        return Cover(deviations[rows], bounds[rows], [copies] * len(self.places))

    def message_bytes(self, width: int, public: Public) -> int:
        return 4 * width


def entrywise(cover: Cover, clients: int) -> Tensor:
    """The deviation of the noise on each entry of each client's message, zero where nothing leaves."""
    width = sum(cover.sizes)
    found = cover.of_entries(cover.deviations).expand(clients, width).clone()
    if cover.at is not None:
        found *= cover.at.cpu().double()
    if cover.places is not None:
        leaves = torch.zeros(width, dtype=torch.bool)
        leaves[cover.places] = True
        found[:, ~leaves] = 0.0
    return found


def target_of(recorded: Recorded) -> int:
    """The client that has paid most, of those the one with most records."""
    ledger = recorded.ledger
    spent = ledger.spent[VIEWS.index("server")]
    asked = np.array([len(recorded.exchanges_of(client)) for client in range(len(spent))])
    return int(np.lexsort((recorded.prepared.data.train.sizes, asked, np.nan_to_num(spent, posinf=0.0)))[-1])


@dataclass(frozen=True)
class _ReleaseScores:
    """Scores of one release of one question in many trials, by observer."""

    release: str
    weighed: dict[View, Tensor]
    """Noisy part of the log-likelihood of each trial, by observer."""
    information: dict[View, float]
    """Most information that it gives, in units of mu^2, by observer, if noise is as declared."""


def attacks(recorded: Recorded, trials: int, number: int = 1, risk: float = 1 - SURE) -> list[Attack]:
    """Attack the claim against every observer, with all releases together and with each alone.

    Args:
        recorded: the run whose gate is attacked.
        trials: number of trials, half of them with the canary.
        number: sets the noise of this attack apart from others.
        risk: probability that any claim is refuted by chance.
    """
    target, delta = target_of(recorded), recorded.prepared.budget.delta
    scored = list(_score_releases(recorded, target, trials, number))
    names = list(dict.fromkeys(one.release for one in scored))
    groups = {"everything": names, **({name: [name] for name in names} if len(names) > 1 else {})}
    coins = _coins(trials)
    found = []
    for view in VIEWS:
        for group, members in groups.items():
            mine = [one for one in scored if one.release in members and view in one.weighed]
            told = sum(one.information[view] for one in mine)
            if not mine or told <= 0:
                continue
            total = sum(one.weighed[view] for one in mine) / math.sqrt(told)
            values = torch.as_tensor(total).numpy()
            scores = Scores.of(values[coins], values[~coins])
            guesses = scores.guesses()
            sure = 1 - risk / (len(groups) * len(VIEWS))
            found.append(
                Attack(
                    f"canary client, {group}" if len(groups) > 1 else "canary client",
                    view,
                    guesses.gdp(delta, SAID),
                    guesses.gdp(delta, sure),
                    guesses.model_free(delta, SAID),
                    scores,
                )
            )
    return found


def affordable_trials(recorded: Recorded, trials: int) -> int:
    """Number of trials, up to the wished-for `trials`, that can be drawn in good time; at least two thousand."""
    layout = recorded.prepared.learner.layout
    each = len(layout.sizes) * sum(len(one.question.clients) for one in recorded.exchanges_of(target_of(recorded)))
    return max(2000, min(trials, int(MAX_DRAWS / max(1, each))))


def _coins(trials: int) -> np.ndarray:
    """Coins of the trials that hold the canary: half of them, in turns."""
    return np.arange(trials) % 2 == 0


def _score_releases(recorded: Recorded, target: int, trials: int, number: int) -> Iterator[_ReleaseScores]:
    gate = replace(recorded.gate, source=other_noise(recorded.prepared, number), mechanism=recorded.mechanism.of)
    coins = torch.from_numpy(_coins(trials).astype(np.float32))
    for count, exchange in enumerate(recorded.exchanges_of(target)):
        for name, release in exchange.releases.items():
            cover = release.cover(exchange.answer.values[name].shape[1], gate.allowance, exchange.public)
            if not release.summed or cover is None or not bool((cover.deviations > 0).any()):
                continue  # conformance tells of what has no noise
            yield _score_release(recorded, gate, exchange, name, cover, target, coins, -1.0 if count % 2 else 1.0)


def _score_release(
    recorded: Recorded,
    gate: Gate,
    exchange: Exchange,
    name: str,
    cover: Cover,
    target: int,
    coins: Tensor,
    sign: float,
) -> _ReleaseScores:
    public, place, release = exchange.public, list(exchange.public.clients).index(target), exchange.releases[name]
    clients, width = len(public.clients), exchange.answer.values[name].shape[1]
    deviations = entrywise(cover, clients)
    places = canary_places(cover, deviations, place, recorded.prepared.learner.layout.sizes)
    null = torch.full((clients, width), release.centre())
    canary = null.clone()
    bounds = entrywise(replace(cover, deviations=cover.bounds), clients)
    canary[place, places] += sign * EXCESS_LENGTH * bounds[place, places].float()
    tiled = Tiled(release, places, canary, null, width)
    loud, quiet = (part.double() for part in tiled.signals(public))
    signal, variances = loud[place] - quiet[place], deviations[:, places].square()
    weighed: dict[View, list[Tensor]] = {}
    information: dict[View, float] = {}
    together = max(1, int(DRAWS_HELD / (clients * len(places))))
    for begin in range(0, len(coins), together):
        given = torch.zeros(clients, len(coins[begin : begin + together]))
        given[place] = coins[begin : begin + together]
        question = exchange.question.number + begin // together * QUESTION_STRIDE
        rows = gate.passes({name: tiled}, {name: given}, question, public).values[name]
        read = gate.read(tiled, rows, public).double().reshape(clients, len(places), -1)
        for view in VIEWS:
            sees = exchange.sees(name, view)
            if sees is None:
                continue
            values, variance = _observe(view, sees, gate, tiled, rows, read, public, place, quiet, variances)
            if bool((variance > 0).all()):
                weights = signal / variance
                weighed.setdefault(view, []).append(weights @ values)
                information[view] = float((signal * weights).sum())
    return _ReleaseScores(name, {view: torch.cat(parts) for view, parts in weighed.items()}, information)


def _observe(
    view: View,
    sees: Reading,
    gate: Gate,
    tiled: Tiled,
    rows: Tensor,
    read: Tensor,
    public: Public,
    place: int,
    quiet: Tensor,
    variances: Tensor,
) -> tuple[Tensor, Tensor]:
    """Values that are left to an observer who knows all else, (places, copies), and the variance that they should
    have."""
    clients = len(rows)
    if sees == "rows":
        return read[place] - quiet[place].unsqueeze(1), variances[place]
    total = gate.mean(tiled, rows, public).double().reshape(len(tiled.places), -1) * clients
    colluders = gate.allowance.of_clients.colluders
    known = _known_clients(known_shares(view, clients, colluders), variances, place)
    left = torch.ones(clients, dtype=torch.bool)
    left[known] = False
    values = total - read[known].sum(dim=0) - quiet[left].sum(dim=0).unsqueeze(1)
    return values, variances[left].sum(dim=0)


def _known_clients(count: int, variances: Tensor, place: int) -> list[int]:
    """The clients whose messages an observer can subtract: those with most noise, the target's never."""
    order = torch.argsort(variances.sum(dim=1), descending=True, stable=True).tolist()
    return [one for one in order if one != place][:count]


def canary_places(cover: Cover, deviations: Tensor, place: int, tensors: Sequence[int]) -> Tensor:
    """Entries that hold the canary: in each block and each tensor the one that leaves with least noise in the sum.

    Args:
        cover: noise of the message.
        deviations: standard deviation on each entry, (clients, width).
        place: place of the target among the clients.
        tensors: sizes of the network's tensors.
    """
    width = deviations.shape[1]
    if width <= FULL_CANARY_ENTRIES:
        return deviations[place].nonzero().squeeze(1)
    edges = {0, width, *np.cumsum(cover.sizes).tolist()}
    if width % sum(tensors) == 0:
        edges |= set(np.cumsum(list(tensors) * (width // sum(tensors))).tolist())
    total = torch.where(deviations[place] > 0, deviations.square().sum(dim=0), torch.inf)
    ends = sorted(edges)
    found = [begin + int(total[begin:end].argmin()) for begin, end in itertools.pairwise(ends)]
    return torch.tensor([one for one in found if bool(deviations[place, one] > 0)], dtype=torch.int64)
