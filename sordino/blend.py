"""A client's part at the end of a run: it trains models alone, weighs them and the federation's, and mixes them.

Nothing leaves, so nothing is charged. The mathematics is in `sordino.parts.blending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.client import Clients
from sordino.data.dataset import Split
from sordino.message import Message
from sordino.parts.blending import FOLDS, LOCAL_PASSES, MEMBERS, folds, mixture, weights

FIGURES = ("blend", "local")
"""Accuracies that are measured: of the mixture, and of the models that clients trained alone."""
LOCAL, TUNED, OWN, GLOBAL = range(len(MEMBERS))
TRAINED = 2 * FOLDS
"""How many models a client trains for its mixture: FOLDS local ones, then FOLDS tuned ones."""


@dataclass(frozen=True)
class Mixtures:
    """What some clients predict with, one row each."""

    models: Tensor
    """(clients, TRAINED, parameters): what they trained for it; without a server's model the tuned ones are zero."""
    weights: Tensor
    """(clients, members): those of the members, as in MEMBERS."""
    accuracies: np.ndarray
    """(clients, figures): as in FIGURES; `nan` for a client without test records."""


class Blending:
    """Some clients that blend their models together."""

    def __init__(self, clients: Clients, who: Sequence[int], own: Tensor, took_part: Tensor, message: Message) -> None:
        """`own` are their personal models, for those who took part; `message` holds `initial`, the model to start from,
        `passes`, those of the federated training, and where the server has models `global` and whose, `clusters`."""
        self._clients, self._who, self._execution = clients, list(who), clients.execution
        self._own, self._took_part = own.to(clients.device), took_part
        self._initial, self._passes = message["initial"].to(clients.device), min(message["passes"], LOCAL_PASSES)
        self._global: Tensor | None = None
        if "global" in message:
            self._global = message["global"][message["clusters"][self._who]].to(clients.device)
        source = clients.gate.source
        labels = [clients.data.train.part(client)[1].numpy() for client in self._who]
        dealt = zip(labels, source.keys(("blend",), self._who), strict=True)
        self._folds = [torch.from_numpy(folds(mine, key)) for mine, key in dealt]

    def mixtures(self) -> Mixtures:
        """Train, weigh and mix."""
        models = torch.stack([self._trained(fold) for fold in range(FOLDS)], dim=2).flatten(1, 2)
        present = self._present()
        likelihoods = self._likelihoods(models)
        found = torch.stack([weights(*pair) for pair in zip(likelihoods, present, strict=True)]).float()
        return Mixtures(models.cpu(), found, self._accuracies(models, found))

    def _trained(self, fold: int) -> Tensor:
        """(clients, 2, parameters): local and tuned models, trained on all folds but one."""
        records = self._records(fold, inside=False)
        seeds = [key >> 32 for key in self._clients.gate.source.keys(("blend", fold), self._who)]
        if not records.sizes.any():  # everybody's only record is in this fold
            local, tuned = self._starts(), self._global
        else:
            local = self._execution.trained(self._clients, self._starts(), records, seeds, self._passes)
            tuned = self._global
            if tuned is not None:
                passes = self._clients.method.epochs
                tuned = self._execution.trained(self._clients, tuned, records, seeds, passes)
        return torch.stack([local, torch.zeros_like(local) if tuned is None else tuned], dim=1)

    def _starts(self) -> Tensor:
        return self._initial.expand(len(self._who), -1)

    def _records(self, fold: int, inside: bool) -> Split:
        """Each client's training records in a fold, or in all others."""
        parts = []
        for client, mine in zip(self._who, self._folds, strict=True):
            x, y = self._clients.data.train.part(client)
            chosen = ((mine == fold) == inside).nonzero().squeeze(1)
            parts.append((x[chosen], y[chosen]))
        return Split.of(parts)

    def _present(self) -> Tensor:
        """(clients, members): which members there are."""
        present = torch.ones(len(self._who), len(MEMBERS), dtype=torch.bool)
        present[:, OWN] = self._took_part > 0
        if self._global is None:
            present[:, [TUNED, GLOBAL]] = False
        return present

    def _likelihoods(self, models: Tensor) -> list[Tensor]:
        """For each client the log-likelihoods (records, members) of its records under models not trained on them."""
        found = [torch.zeros(len(mine), len(MEMBERS)) for mine in self._folds]
        for fold in range(FOLDS):
            records = self._records(fold, inside=True)
            if not records.sizes.any():
                continue
            judged = {LOCAL: models[:, fold]}
            if self._global is not None:
                judged |= {TUNED: models[:, FOLDS + fold], GLOBAL: self._global}
            for member, rows in judged.items():
                said = self._log_probabilities(rows, records, range(len(self._who)))
                for place, mine in enumerate(self._folds):
                    labels = records.part(place)[1]
                    found[place][mine == fold, member] = said[place].gather(1, labels.unsqueeze(1)).squeeze(1)
        for rows in found:  # what has been trained on all records is weighed by what stands for it
            rows[:, OWN] = rows[:, LOCAL if self._global is None else TUNED]
        return found

    def _accuracies(self, models: Tensor, weights: Tensor) -> np.ndarray:
        """(clients, figures), on the clients' test records."""
        test = self._clients.data.test
        members = [*models.unbind(1), self._own, *([] if self._global is None else [self._global])]
        said = [self._log_probabilities(rows, test, self._who) for rows in members]
        found = np.full((len(self._who), len(FIGURES)), np.nan)
        for place, client in enumerate(self._who):
            labels = test.part(client)[1]
            if not len(labels):
                continue
            spoken = torch.stack([rows[place] for rows in said])
            mixed = mixture(spoken, spread(weights[place])[: len(spoken)])
            local = mixture(spoken[:FOLDS], torch.full((FOLDS,), 1 / FOLDS))
            found[place] = [float((rows.argmax(dim=1) == labels).double().mean()) for rows in (mixed, local)]
        return found

    def _log_probabilities(self, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        outputs = self._execution.outputs(self._clients, models, records, parts)
        return [torch.log_softmax(rows.cpu(), dim=1) for rows in outputs]


def spread(weights: Tensor) -> Tensor:
    """The weights of single models from those of the members: FOLDS local and FOLDS tuned ones, own, global."""
    shared = (weights[LOCAL], weights[TUNED])
    return torch.cat([*(weight.repeat(FOLDS) / FOLDS for weight in shared), weights[[OWN, GLOBAL]]])
