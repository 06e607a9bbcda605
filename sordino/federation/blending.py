"""Blending at the end of a run: a client trains models alone, weights them and the federation's, and mixes them.

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
from sordino.learning.metrics import sums_on_test_records
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
    folds,
    mixture,
    offsets,
    power,
    trust_of,
    weights,
)
from sordino.privacy.budget.allowance import Allowance
from sordino.tasks import Task

RULES = ("weights", "powers", "labels")
"""Names of the tensors that say how members are mixed."""
TRAINED = 2
"""Number of models that a client trains for its mixture: a local one and a tuned one."""


@dataclass(frozen=True)
class Mixtures:
    """Mixtures with which some clients predict, one row each."""

    models: Tensor
    """(clients, TRAINED, parameters): the models that they trained; without a server's model the tuned ones are
    zero."""
    weights: Tensor
    """(clients, members): weights of the members, in the order of MEMBERS."""
    powers: Tensor
    """(clients, members): powers to which the members' probabilities are raised before they are mixed."""
    labels: Tensor
    """(clients, width): each client's `Task.frequencies`."""
    accuracies: np.ndarray
    """(clients, figures and sums): the columns of `figures_of`, `nan` for a client without test records; then the sums
    from which the mixture's metrics follow."""

    def rules(self) -> dict[str, Tensor]:
        """Return the tensors that say how members are mixed, by name."""
        return {name: getattr(self, name) for name in RULES}


def figures_of(task: Task) -> tuple[str, ...]:
    """Names of what is measured: the score of the models that clients trained alone, and the mixture's metrics."""
    return ("local", *task.metrics)


def instructions(
    method: Method,
    schedule: Schedule,
    allowance: Allowance,
    records: np.ndarray,
    initial: Tensor,
    served: Served | None,
) -> Message:
    """Return the message with which clients blend.

    It has `initial`, the model to start from; `passes`, the number of passes of the federated training; `trust` in the
    federation; and, where the server has models, `global`, `clusters` (whose they are) and `averaged`, their means over
    the rounds. For a method that shares a part of the network the whole network is counted, so that trust errs on the
    cautious side.

    Args:
        method: The method of the run.
        schedule: Its schedule.
        allowance: Its noise.
        records: Number of training records of each client.
        initial: The initial model.
        served: The server's models, if it has any.
    """
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
        """Prepare the folds of some clients.

        Args:
            clients: The clients of this process.
            who: Numbers of those that blend.
            own: Their personal models, one row each.
            took_part: Number of rounds in which each took part.
            message: Made by `instructions`.
        """
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
        self._task = clients.data.task
        groups = [self._task.group(clients.data.train.part(client)[1].numpy()) for client in self._who]
        dealt = zip(groups, clients.gate.source.keys(("blend",), self._who), strict=True)
        self._folds = [torch.from_numpy(folds(mine, key)) for mine, key in dealt]

    def mixtures(self) -> Mixtures:
        """Train the members, evaluate them on held-out records, and weight and mix them."""
        with self._clients.unchanged("blending"):
            return self._mixtures()

    def _mixtures(self) -> Mixtures:
        said = [torch.zeros(len(MEMBERS), len(mine), self._task.width) for mine in self._folds]
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
        """Return each client's row of `models` after `passes` passes over its `records`."""
        if not records.sizes.any():  # everybody's only record is in the fold that is left out
            return models
        seeds = [key >> 32 for key in self._clients.gate.source.keys(("blend", fold), self._who)]
        return self._execution.trained(self._clients, models, records, seeds, passes)

    def _judge(self, models: Tensor, held_out: Split, fold: int, said: list[Tensor]) -> None:
        """Write the log-probabilities of each client's records in a fold into `said`."""
        if not held_out.sizes.any():
            return
        found = self._log_probabilities(models, held_out, range(len(self._who)))
        for rows, mine, more in zip(said, self._folds, found, strict=True):
            rows[mine == fold] = more

    def _rules(self, place: int, said: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, powers and label frequencies of one client, from its members' log-probabilities `said`
        (members, records, width)."""
        said[AVERAGED_ADJUSTED] = said[AVERAGED]
        task, targets = self._task, self._clients.data.train.part(self._who[place])[1]
        without_each = offsets(task.frequencies_without_each(targets))
        judged = torch.full((len(MEMBERS),), bool(self._server))
        judged[LOCAL], judged[OWN] = True, False
        judged &= ~said.isnan().any(dim=(1, 2))  # of a model that overflowed, nothing is taken
        judged[LOCAL] |= ~judged.any()  # but somebody has to predict
        powers = torch.ones(len(MEMBERS))
        for member in judged.nonzero().squeeze(1).tolist():
            powers[member] = power(task, said[member], targets, without_each[member])
        likelihoods = task.likelihoods(task.sharpen(said, powers.reshape(-1, 1, 1), without_each), targets)
        found = weights(likelihoods.T, judged, self._trust).float()
        if self._took_part[place] > 0 and self._own[place].isfinite().all():
            # The personal model was trained on all records, so it shares the weight of its held-out twin.
            twin = TUNED if self._server else LOCAL
            found[OWN] = self._trust * found[twin] / (FOLDS + 1)
            found[twin] -= found[OWN]
            powers[OWN] = powers[twin]
        return found, powers, task.frequencies(targets)

    def _records(self, fold: int, inside: bool) -> Split:
        """Return each client's training records in a fold, or in all others."""
        parts = []
        for client, mine in zip(self._who, self._folds, strict=True):
            x, y = self._clients.data.train.part(client)
            chosen = ((mine == fold) == inside).nonzero().squeeze(1)
            parts.append((x[chosen], y[chosen]))
        return Split.of(parts)

    def _accuracies(self, models: Tensor, weights: Tensor, powers: Tensor, labels: Tensor) -> np.ndarray:
        """Return (clients, figures and sums), on the clients' test records."""
        task, data, test = self._task, self._clients.data, self._clients.data.test
        members = [*models.unbind(1), self._own, *self._server.values()]
        said = [self._log_probabilities(rows, test, self._who) for rows in members]
        said += [said[AVERAGED]] if self._server else []  # once more, to be adjusted
        mixed = []
        for place, mine in enumerate(labels):
            there = weights[place].nonzero().squeeze(1)  # the others may have overflowed
            spoken = torch.stack([said[member][place] for member in there.tolist()])
            rules = (weights[place], powers[place], offsets(mine))
            mixed.append(mixture(task, spoken, *(rule[there] for rule in rules)))
        alone = task.figures(sums_on_test_records(data, self._who, said[LOCAL]))
        sums = sums_on_test_records(data, self._who, mixed)
        return np.column_stack([alone[:, task.metrics.index(task.score)], task.figures(sums), sums])

    def _log_probabilities(self, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        outputs = self._execution.outputs(self._clients, models, records, parts)
        return [self._task.log_probabilities(rows.cpu()) for rows in outputs]
