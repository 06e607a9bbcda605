"""A client's part at the end of a run: it trains models alone, weighs them and the federation's, and mixes them.

Nothing leaves, so nothing is charged. The mathematics is in `sordino.parts.blending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data.dataset import Split
from sordino.federation.client import Clients
from sordino.federation.message import Message
from sordino.federation.run_state import Served
from sordino.federation.schedule import Schedule
from sordino.learning.metrics import METRICS, evaluated, metrics_of
from sordino.method import Method
from sordino.parts.blending import (
    ADJUSTED,
    AVERAGED,
    AVERAGED_ADJUSTED,
    FOLDS,
    LOCAL,
    LOCAL_PASSES,
    MEMBERS,
    OWN,
    TUNED,
    counts_without_each,
    folds,
    frequencies,
    mixture,
    offsets,
    power,
    sharpen,
    trust_of,
    weights,
)
from sordino.privacy.budget.allowance import Allowance

FIGURES = ("local", *METRICS)
"""What is measured: the accuracy of the models that clients trained alone, and the metrics of the mixture."""
RULES = ("weights", "powers", "labels")
"""What says how members are mixed."""
TRAINED = 2
"""How many models a client trains for its mixture: a local one and a tuned one."""


@dataclass(frozen=True)
class Mixtures:
    """What some clients predict with, one row each."""

    models: Tensor
    """(clients, TRAINED, parameters): what they trained for it; without a server's model the tuned ones are zero."""
    weights: Tensor
    """(clients, members): those of the members, as in MEMBERS."""
    powers: Tensor
    """(clients, members): to which each member's probabilities are raised before they are mixed."""
    labels: Tensor
    """(clients, classes): how often a client has each label, smoothed and as logarithms."""
    accuracies: np.ndarray
    """(clients, figures and sums): as in FIGURES, `nan` for a client without test records; then the sums from which the
    mixture's metrics follow."""

    def rules(self) -> dict[str, Tensor]:
        """By name, how members are mixed."""
        return {name: getattr(self, name) for name in RULES}


def instructions(
    method: Method,
    schedule: Schedule,
    allowance: Allowance,
    records: np.ndarray,
    initial: Tensor,
    served: Served | None,
) -> Message:
    """What clients are told when they blend: `initial`, the model to start from; `passes`, those of the federated
    training; how much the federation is to be `trust`ed, where clients have so many training `records`; and, where the
    server has models, `global`, whose, `clusters`, and `averaged`, their means over the rounds. Where methods share a
    part of the network all of it is counted: trust errs to the cautious side."""
    feasible = allowance.feasible(schedule.clients, schedule.turns, records)
    message: dict[str, Any] = {
        "initial": initial,
        "passes": schedule.turns * method.epochs,
        "trust": trust_of(feasible, len(initial), method.unit),
    }
    if served is None:
        return message
    return message | {"global": served.models, "averaged": served.averaged, "clusters": served.clusters}


class Blending:
    """Some clients that blend their models together."""

    def __init__(self, clients: Clients, who: Sequence[int], own: Tensor, took_part: Tensor, message: Message) -> None:
        """`own` are their personal models, for those who took part; `message` is made by `instructions`."""
        self._clients, self._who, self._execution = clients, list(who), clients.execution
        self._own, self._took_part = own.to(clients.device), took_part
        self._initial = message["initial"].to(clients.device).expand(len(self._who), -1)
        self._passes, self._trust = min(message["passes"], LOCAL_PASSES), message["trust"]
        self._server: dict[int, Tensor] = {}
        """By member, the server's models for these clients, where it has any."""
        if "clusters" in message:
            mine = message["clusters"][self._who]
            for member, name in ((AVERAGED, "averaged"), (ADJUSTED, "global")):
                self._server[member] = message[name][mine].to(clients.device)
        labels = [clients.data.train.part(client)[1].numpy() for client in self._who]
        dealt = zip(labels, clients.gate.source.keys(("blend",), self._who), strict=True)
        self._folds = [torch.from_numpy(folds(mine, key)) for mine, key in dealt]

    def mixtures(self) -> Mixtures:
        """Train, judge, weigh and mix."""
        with self._clients.unchanged("blending"):
            return self._mixtures()

    def _mixtures(self) -> Mixtures:
        said = [torch.zeros(len(MEMBERS), len(mine), self._clients.data.classes) for mine in self._folds]
        tuned = torch.zeros_like(self._initial)
        for fold in range(FOLDS):
            others, held_out = self._records(fold, inside=False), self._records(fold, inside=True)
            judged = {LOCAL: self._trained(self._initial, others, fold, self._passes)}
            if self._server:
                judged[TUNED] = self._trained(self._server[ADJUSTED], others, fold, self._clients.method.epochs)
                tuned = tuned + judged[TUNED] / FOLDS
            for member, models in (judged | self._server).items():
                self._judge(models, held_out, fold, [rows[member] for rows in said])
        local = self._trained(self._initial, self._records(FOLDS, inside=False), FOLDS, self._passes)
        models = torch.stack([local, tuned], dim=1)
        rules = [self._rules(place, mine) for place, mine in enumerate(said)]
        found, powers, labels = (torch.stack(rows) for rows in zip(*rules, strict=True))
        return Mixtures(models.cpu(), found, powers, labels, self._accuracies(models, found, powers, labels))

    def _trained(self, models: Tensor, records: Split, fold: int, passes: int) -> Tensor:
        """Each client's row of `models` after so many passes over its `records`."""
        if not records.sizes.any():  # everybody's only record is in the fold that is left out
            return models
        seeds = [key >> 32 for key in self._clients.gate.source.keys(("blend", fold), self._who)]
        return self._execution.trained(self._clients, models, records, seeds, passes)

    def _judge(self, models: Tensor, held_out: Split, fold: int, said: list[Tensor]) -> None:
        """Fill in what models say of each client's records in a fold."""
        if not held_out.sizes.any():
            return
        found = self._log_probabilities(models, held_out, range(len(self._who)))
        for rows, mine, more in zip(said, self._folds, found, strict=True):
            rows[mine == fold] = more

    def _rules(self, place: int, said: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How one client's members are mixed, as in RULES, from what they `said` (members, records, classes)."""
        said[AVERAGED_ADJUSTED] = said[AVERAGED]
        labels = self._clients.data.train.part(self._who[place])[1]
        classes = said.shape[2]
        without_each = offsets(frequencies(counts_without_each(labels, classes)))
        judged = torch.full((len(MEMBERS),), bool(self._server))
        judged[LOCAL], judged[OWN] = True, False
        judged &= ~said.isnan().any(dim=(1, 2))  # of a model that overflowed, nothing is taken
        judged[LOCAL] |= ~judged.any()  # but somebody has to predict
        powers = torch.ones(len(MEMBERS))
        for member in judged.nonzero().squeeze(1).tolist():
            powers[member] = power(said[member], labels, without_each[member])
        likelihoods = sharpen(said, powers.reshape(-1, 1, 1), without_each)[:, torch.arange(len(labels)), labels]
        found = weights(likelihoods.T, judged, self._trust).float()
        if self._took_part[place] > 0 and self._own[place].isfinite().all():
            # What was trained on all records shares the place of what stands for it.
            twin = TUNED if self._server else LOCAL
            found[OWN] = self._trust * found[twin] / (FOLDS + 1)
            found[twin] -= found[OWN]
            powers[OWN] = powers[twin]
        return found, powers, frequencies(torch.bincount(labels, minlength=classes))

    def _records(self, fold: int, inside: bool) -> Split:
        """Each client's training records in a fold, or in all others."""
        parts = []
        for client, mine in zip(self._who, self._folds, strict=True):
            x, y = self._clients.data.train.part(client)
            chosen = ((mine == fold) == inside).nonzero().squeeze(1)
            parts.append((x[chosen], y[chosen]))
        return Split.of(parts)

    def _accuracies(self, models: Tensor, weights: Tensor, powers: Tensor, labels: Tensor) -> np.ndarray:
        """(clients, figures and sums), on the clients' test records."""
        test, positive = self._clients.data.test, self._clients.data.meaning.positive
        members = [*models.unbind(1), self._own, *self._server.values()]
        said = [self._log_probabilities(rows, test, self._who) for rows in members]
        said += [said[AVERAGED]] if self._server else []  # once more, to be adjusted
        mixed = []
        for place, mine in enumerate(labels):
            there = weights[place].nonzero().squeeze(1)  # the others may have overflowed
            spoken = torch.stack([said[member][place] for member in there.tolist()])
            rules = (weights[place], powers[place], offsets(mine))
            mixed.append(mixture(spoken, *(rule[there] for rule in rules)))
        alone = metrics_of(evaluated(self._clients.data, self._who, said[LOCAL]), positive)
        sums = evaluated(self._clients.data, self._who, mixed)
        return np.column_stack([alone[:, METRICS.index("accuracy")], metrics_of(sums, positive), sums])

    def _log_probabilities(self, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        outputs = self._execution.outputs(self._clients, models, records, parts)
        return [torch.log_softmax(rows.cpu(), dim=1) for rows in outputs]
