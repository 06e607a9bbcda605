"""Models that clients predict with in the end, made by each from its own records after the last round.

A client that blends trains models alone, weights them and the federation's, and mixes them. One that recalibrates fits
the probabilities of the server's model to its records and, where it has many records, takes the mean with a model that
it trained alone. Either is a mixture with a power and offsets for each member. Nothing leaves, so nothing is charged.
The mathematics is in `sordino.parts.blending` and `sordino.tasks.recalibration`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.data.dataset import Split
from sordino.federation.client import Clients
from sordino.federation.message import Message
from sordino.federation.run_state import Served
from sordino.federation.schedule import Schedule
from sordino.learning.descent import Descent
from sordino.learning.metrics import sums_on_test_records
from sordino.learning.network import Records
from sordino.method import Method
from sordino.methods.local import Local
from sordino.parts.blending import (
    ADJUSTED,
    AVERAGED,
    AVERAGED_ADJUSTED,
    BOLD,
    FOLDS,
    LOCAL,
    LOCAL_PASSES,
    MEMBERS,
    NETWORKS,
    OWN,
    RECALIBRATED,
    TUNED,
    enough_records,
    folds,
    mixture,
    offsets,
    trust_of,
    weights,
)
from sordino.privacy.budget.allowance import Allowance
from sordino.tasks import Task

RULES = ("weights", "powers", "offsets")
"""Names of the tensors that say how members are mixed."""


@dataclass(frozen=True)
class Training:
    """Settings with which a client may train a model alone."""

    method: Method
    """Method whose optimizer, rate, momentum and batches it has."""
    passes: int
    """Number of passes over the client's records."""


def trainings(method: Method, records: Records, passes: int, turns: int, linear: bool) -> list[Training]:
    """Return the ways in which a client may train a model alone, of which its held-out records choose.

    The first has the settings of the run's method. Those may suit the federation alone: with the defaults for networks
    on features a client takes one long step on all of its records in each round. So the next one trains as the method
    `local` does. Steps of that are short for linear models on features of length 1: they may also be longer.

    Args:
        method: The method of the run.
        records: Any client's.
        passes: Number of passes of the federated training.
        turns: Number of rounds in which a client takes part.
        linear: Whether the network has a single layer to train.
    """
    local = Local()
    alone = Training(local, min(turns * local.epochs, LOCAL_PASSES))
    found = [Training(method, min(passes, LOCAL_PASSES)), alone]
    if _settings(method.descent(records)) == _settings(local.descent(records)):
        found = [Training(method, max(one.passes for one in found))]
    bold = Training(replace(local, rate=BOLD * local.rate), alone.passes)
    return [*found, bold] if linear else found


def _settings(descent: Descent) -> tuple[object, ...]:
    """Return the settings of local training by which its steps differ from those of another."""
    return descent.optimizer, descent.rate, descent.batch, descent.momentum, descent.change


@dataclass(frozen=True)
class Mixtures:
    """Mixtures with which some clients predict, one row each."""

    models: Tensor
    """(clients, trained, parameters): the models that they trained, as `Mixing.trains` says; without a server's model
    the tuned ones are zero."""
    weights: Tensor
    """(clients, members): weights of the members, in the order of MEMBERS."""
    powers: Tensor
    """(clients, members): powers to which the members' probabilities are raised before they are mixed."""
    offsets: Tensor
    """(clients, members, width): terms added to the members' log-probabilities after that."""
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
    personal: str,
    method: Method,
    schedule: Schedule,
    allowance: Allowance,
    records: np.ndarray,
    initial: Tensor,
    served: Served | None,
) -> Message:
    """Return the message with which clients make the models that they predict with.

    It has `personal`, the kind of model; `initial`, the model to start from; `passes`, the number of passes of the
    federated training, and `turns`, that of its rounds for one client; `feasible`, the number of parameters that
    can be trained at this budget; `trust` in the federation, which follows; and, where the server has models,
    `global`, `clusters` (whose they are) and, where clients blend, `averaged`, their means over the rounds. For a
    method that shares a part of the network the whole network is counted, so that trust errs on the cautious side.

    Args:
        personal: `blend`, `recalibrate` or `own`.
        method: The method of the run.
        schedule: Its schedule.
        allowance: Its noise.
        records: Number of training records of each client.
        initial: The initial model.
        served: The server's models, if it has any.
    """
    feasible = allowance.feasible(schedule.clients, schedule.turns, records)
    message: dict[str, Any] = {
        "personal": personal,
        "initial": initial,
        "passes": schedule.turns * method.epochs,
        "turns": schedule.turns,
        "feasible": feasible,
        "trust": trust_of(feasible, len(initial), method.unit),
    }
    if served is None:
        return message
    message |= {"global": served.models, "clusters": served.clusters}
    return message | ({} if served.averaged is None else {"averaged": served.averaged})


class Mixing(ABC):
    """Some clients that make the mixtures they predict with together."""

    trains: ClassVar[tuple[int, ...]]
    """Members that a client trains for its mixture, in the order in which `Mixtures.models` has them."""
    may_be_bold: ClassVar[bool] = False
    """Whether linear models are also trained alone with longer steps."""

    def __init__(self, clients: Clients, who: Sequence[int], own: Tensor, took_part: Tensor, message: Message) -> None:
        """Take what the clients have.

        Args:
            clients: The clients of this process.
            who: Numbers of those that make mixtures.
            own: Their personal models, one row each.
            took_part: Number of rounds in which each took part.
            message: Made by `instructions`.
        """
        self._clients, self._who, self._execution = clients, list(who), clients.execution
        self._own, self._took_part = own.to(clients.device), took_part
        self._initial = message["initial"].to(clients.device).expand(len(self._who), -1)
        self._trust = message["trust"]
        self._rounds = message["passes"], message["turns"]
        self._task = clients.data.task
        features = math.prod(clients.data.shape) + 1
        self._enough = enough_records(features, message["feasible"], clients.method.unit)
        self._server: dict[int, Tensor] = {}
        """By member, the server's models for these clients, where it has any."""
        for member, name in ((AVERAGED, "averaged"), (ADJUSTED, "global")):
            if name in message:
                mine = message["clusters"][self._who]
                self._server[member] = message[name][mine].to(clients.device)

    def mixtures(self) -> Mixtures:
        """Make the clients' mixtures and evaluate them on test records."""
        with self._clients.unchanged("blending"):
            return self._mixtures()

    @abstractmethod
    def _mixtures(self) -> Mixtures:
        """Train the members and find how to mix them."""

    def _training(self, place: int) -> tuple[Tensor, Tensor]:
        """Return a client's training records."""
        return self._clients.data.train.part(self._who[place])

    def _own_is_sound(self, place: int) -> bool:
        """Whether the client has a personal model of the method that did not overflow."""
        return bool(self._took_part[place] > 0 and self._own[place].isfinite().all())

    @functools.cached_property
    def _trainings(self) -> list[Training]:
        clients = self._clients
        x, y = (tensor.to(clients.device) for tensor in self._training(0))
        linear = self.may_be_bold and len(clients.learner.layout.layers) == 1
        return trainings(clients.method, Records(x, y, clients.learner, 0), *self._rounds, linear)

    @functools.cached_property
    def _folds(self) -> list[Tensor]:
        """Number of the fold of each training record, one tensor for each client."""
        groups = [self._task.strata(self._training(place)[1].numpy()) for place in range(len(self._who))]
        dealt = zip(groups, self._clients.gate.source.keys(("blend",), self._who), strict=True)
        return [torch.from_numpy(folds(mine, key)) for mine, key in dealt]

    def _records(self, fold: int, inside: bool) -> Split:
        """Return each client's training records in a fold, or in all others."""
        parts = []
        for place, mine in enumerate(self._folds):
            x, y = self._training(place)
            chosen = ((mine == fold) == inside).nonzero().squeeze(1)
            parts.append((x[chosen], y[chosen]))
        return Split.of(parts)

    def _judge(self, models: Tensor, held_out: Split, fold: int, said: list[Tensor]) -> None:
        """Write the log-probabilities of each client's records in a fold into `said`."""
        if not held_out.sizes.any():
            return
        found = self._log_probabilities(models, held_out, range(len(self._who)))
        for rows, mine, more in zip(said, self._folds, found, strict=True):
            rows[mine == fold] = more

    def _cross_validated(self) -> list[list[Tensor]]:
        """Return what each training's models say of every client's records that they were not trained on, in
        log-probabilities (records, width), by training and client."""
        said = [[torch.zeros(len(mine), self._task.told) for mine in self._folds] for _ in self._trainings]
        for fold in range(FOLDS):
            others, held_out = self._records(fold, inside=False), self._records(fold, inside=True)
            for training, rows in zip(self._trainings, said, strict=True):
                self._judge(self._trained(self._initial, others, fold, training), held_out, fold, rows)
        return said

    def _best(self, said: Sequence[list[Tensor]]) -> list[int]:
        """Return the training whose models fit each client's held-out records best, sharpened as in a mixture; the
        first of several that are alike.

        Args:
            said: Made by `_cross_validated`.
        """
        if len(said) == 1:
            return [0] * len(self._who)
        return [int(np.argmax([self._fit(place, rows[place]) for rows in said])) for place in range(len(self._who))]

    def _fit(self, place: int, said: Tensor) -> float:
        """Return the log-likelihood of a client's records by what a model `said` of them; minus infinity for one that
        overflowed."""
        if not said.isfinite().all():
            return -math.inf
        task, targets, nothing = self._task, self._training(place)[1], torch.zeros_like(said)
        power, added = task.temper(said, targets, nothing)
        return float(task.likelihoods(task.sharpen(said, power, nothing + added).unsqueeze(0), targets).double().sum())

    def _train_alone(self, best: Sequence[int]) -> Tensor:
        """Return the models that clients train alone on all of their records, each with its best training."""
        models = self._initial.clone()
        for number in sorted(set(best)):
            places = [place for place, mine in enumerate(best) if mine == number]
            records = Split.of([self._training(place) for place in places])
            models[places] = self._trained(self._initial[places], records, FOLDS, self._trainings[number], places)
        return models

    def _trained(
        self, models: Tensor, records: Split, fold: int, training: Training, places: Sequence[int] | None = None
    ) -> Tensor:
        """Return each client's row of `models` after a training on its `records`.

        Args:
            models: One row for each of the clients.
            records: Their records.
            fold: Number of the fold that is left out; FOLDS for none.
            training: Settings.
            places: Places of the clients; None for all.
        """
        if not records.sizes.any():  # everybody's only record is in the fold that is left out
            return models
        who = self._who if places is None else [self._who[place] for place in places]
        seeds = [key >> 32 for key in self._clients.gate.source.keys(("blend", fold), who)]
        return self._execution.trained(self._clients, models, records, seeds, training.method, training.passes)

    def _evaluated(self, models: Tensor, rules: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Mixtures:
        """Return the clients' mixtures with their accuracies.

        Args:
            models: (clients, trained, parameters), the models that they trained, as `trains` says.
            rules: Each client's weights, powers and offsets.
        """
        shares, powers, added = (torch.stack(rows) for rows in zip(*rules, strict=True))
        networks = {**dict(zip(self.trains, models.unbind(1), strict=True)), OWN: self._own, **self._server}
        return Mixtures(models.cpu(), shares, powers, added, self._accuracies(networks, shares, powers, added))

    def _accuracies(self, networks: Mapping[int, Tensor], shares: Tensor, powers: Tensor, added: Tensor) -> np.ndarray:
        """Return (clients, figures and sums), on the clients' test records.

        Args:
            networks: By member, the clients' models, one row each.
            shares: (clients, members) weights.
            powers: (clients, members).
            added: (clients, members, width) offsets.
        """
        task, data = self._task, self._clients.data
        needed = ({LOCAL} & networks.keys()) | {
            NETWORKS[member] for member in shares.any(dim=0).nonzero().squeeze(1).tolist()
        }
        said = {one: self._log_probabilities(networks[one], data.test, self._who) for one in sorted(needed)}
        mixed = []
        for place, mine in enumerate(shares):
            there = mine.nonzero().squeeze(1)  # the others may have overflowed
            spoken = torch.stack([said[NETWORKS[member]][place] for member in there.tolist()])
            mixed.append(mixture(task, spoken, mine[there], powers[place][there], added[place][there]))
        alone = np.full(len(self._who), np.nan)
        if LOCAL in said:
            figures = task.figures(sums_on_test_records(data, self._who, said[LOCAL]))
            alone = figures[:, task.metrics.index(task.score)]
        sums = sums_on_test_records(data, self._who, mixed)
        return np.column_stack([alone, task.figures(sums), sums])

    def _log_probabilities(self, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        outputs = self._execution.outputs(self._clients, models, records, parts)
        return [self._task.log_probabilities(rows.cpu()) for rows in outputs]

    def _on_training_records(self, models: Tensor) -> list[Tensor | None]:
        """Return the log-probabilities of each client's training records by its row of `models`; None where that
        overflowed."""
        train = self._clients.data.train
        if train.sizes[self._who].any():
            said = self._log_probabilities(models, train, self._who)
        else:
            said = [torch.zeros(0, self._task.told)] * len(self._who)
        sound = [rows.isfinite().all() and model.isfinite().all() for rows, model in zip(said, models, strict=True)]
        return [rows if good else None for rows, good in zip(said, sound, strict=True)]

    def _spread(self, place: int, said: Tensor | None) -> Tensor:
        """Return offsets that tell how far a client's targets lie from what a model that was trained on them `said`."""
        if said is None or not self._task.needs_spread:
            return torch.zeros(self._task.told)
        return self._task.spread(said, self._training(place)[1], math.prod(self._clients.data.shape) + 1)


class Blending(Mixing):
    """Some clients that weight their own and the federation's models by held-out records."""

    trains = (LOCAL, TUNED)
    may_be_bold = True

    def _mixtures(self) -> Mixtures:
        said = [torch.zeros(len(MEMBERS), len(mine), self._task.told) for mine in self._folds]
        alone = self._cross_validated()
        best = self._best(alone)
        for place, rows in enumerate(said):
            rows[LOCAL] = alone[best[place]][place]
        tuned, tuning = torch.zeros_like(self._initial), Training(self._clients.method, self._clients.method.epochs)
        for fold in range(FOLDS) if self._server else ():
            models = self._trained(self._server[ADJUSTED], self._records(fold, inside=False), fold, tuning)
            tuned = tuned + models / FOLDS
            for member, judged in ({TUNED: models} | self._server).items():
                self._judge(judged, self._records(fold, inside=True), fold, [rows[member] for rows in said])
        models = torch.stack([self._train_alone(best), tuned], dim=1)
        return self._evaluated(models, [self._rules(place, mine) for place, mine in enumerate(said)])

    def _rules(self, place: int, said: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, powers and offsets of one client, from its members' log-probabilities `said` (members,
        records, width)."""
        task, targets = self._task, self._training(place)[1]
        said[AVERAGED_ADJUSTED] = said[AVERAGED]
        if self._server:
            said[RECALIBRATED] = self._recalibrated(said[ADJUSTED], targets, self._folds[place])
        without_each = offsets(task.frequencies_without_each(targets))
        judged = torch.full((len(MEMBERS),), bool(self._server))
        judged[LOCAL], judged[OWN] = True, False
        judged &= ~said.isnan().any(dim=(1, 2))  # of a model that overflowed, nothing is taken
        judged[LOCAL] |= ~judged.any()  # but somebody has to predict
        powers, added = torch.ones(len(MEMBERS)), offsets(task.frequencies(targets))
        for member in judged.nonzero().squeeze(1).tolist():
            if member != RECALIBRATED:
                powers[member], more = task.temper(said[member], targets, without_each[member])
                added[member], without_each[member] = added[member] + more, without_each[member] + more
        likelihoods = task.likelihoods(task.sharpen(said, powers.reshape(-1, 1, 1), without_each), targets)
        found = weights(likelihoods.T, judged, self._trust).float()
        if self._server:
            powers[RECALIBRATED], added[RECALIBRATED] = task.recalibrate(said[ADJUSTED], targets)
        if self._own_is_sound(place):
            # The personal model was trained on all records, so it shares the weight of its held-out twin.
            twin = TUNED if self._server else LOCAL
            found[OWN] = self._trust * found[twin] / (FOLDS + 1)
            found[twin] -= found[OWN]
            powers[OWN], added[OWN] = powers[twin], added[twin]
        return found, powers, added

    def _recalibrated(self, said: Tensor, targets: Tensor, fold_of: Tensor) -> Tensor:
        """Return the log-probabilities of the server's model, each record's recalibrated on the folds that it is not
        in.

        Args:
            said: (records, width), what the server's model says of a client's training records.
            targets: (records,) of the same records.
            fold_of: (records,) numbers of their folds.
        """
        found = torch.empty_like(said)
        for fold in range(FOLDS):
            inside = fold_of == fold
            fitted = self._task.recalibrate(said[~inside], targets[~inside])
            found[inside] = self._task.sharpen(said[inside], *fitted)
        return found


class Recalibrating(Mixing):
    """Some clients that recalibrate the server's model on their records.

    A client with more effective training records than `enough_records` predicts with the mean of the probabilities of
    that model and of the one that it trained alone; one with fewer predicts with the recalibrated model. Where the
    server's model overflowed, a client predicts with the model that it trained alone; where the server has none, with
    the method's personal model, if it has taken part.
    """

    trains = (LOCAL,)

    def _mixtures(self) -> Mixtures:
        single = len(self._trainings) == 1  # then nothing has to be chosen, and one training is enough
        local = self._train_alone([0] * len(self._who) if single else self._best(self._cross_validated()))
        alone = self._on_training_records(local)
        served = self._on_training_records(self._server[ADJUSTED]) if self._server else [None] * len(self._who)
        rules = [self._rules(place, *said) for place, said in enumerate(zip(alone, served, strict=True))]
        return self._evaluated(local.unsqueeze(1), rules)

    @functools.cached_property
    def _by_own(self) -> list[Tensor | None]:
        return self._on_training_records(self._own)

    def _rules(self, place: int, alone: Tensor | None, served: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, powers and offsets of one client, from the log-probabilities of its training records by the
        model that it trained alone and by the server's."""
        targets = self._training(place)[1]
        found, powers = torch.zeros(len(MEMBERS)), torch.ones(len(MEMBERS))
        added = torch.zeros(len(MEMBERS), self._task.told)
        added[LOCAL] = self._spread(place, alone)
        if served is not None:
            powers[RECALIBRATED], added[RECALIBRATED] = self._task.recalibrate(served, targets)
            enough = self._task.effective_records(targets.numpy()) > self._enough
            found[[LOCAL, RECALIBRATED] if enough and alone is not None else [RECALIBRATED]] = 1
        else:
            found[LOCAL if self._server or not self._own_is_sound(place) else OWN] = 1
            if self._task.needs_spread and found[OWN]:
                added[OWN] = self._spread(place, self._by_own[place])
        return found / found.sum(), powers, added


class Keeping(Mixing):
    """Some clients that predict with the method's own models, or the server's where they never took part, and find out
    how far targets lie from these predictions."""

    trains = ()

    def _mixtures(self) -> Mixtures:
        rules = []
        own = self._on_training_records(self._own)
        served = self._on_training_records(self._server[ADJUSTED]) if self._server else own
        for place, said in enumerate(zip(own, served, strict=True)):
            member = ADJUSTED if self._server and not self._took_part[place] > 0 else OWN
            found, added = torch.zeros(len(MEMBERS)), torch.zeros(len(MEMBERS), self._task.told)
            found[member], added[member] = 1, self._spread(place, said[member == ADJUSTED])
            rules.append((found, torch.ones(len(MEMBERS)), added))
        return self._evaluated(self._own.new_zeros(len(self._who), 0, self._own.shape[1]), rules)


KINDS: dict[str, type[Mixing]] = {"own": Keeping, "blend": Blending, "recalibrate": Recalibrating}
"""Ways to make what clients predict with, by the value of the experiment's key `personal`."""


def makes_mixtures(personal: str, task: Task) -> bool:
    """Whether clients make mixtures at the end: to personalize, or to find out how far targets lie from predictions."""
    return personal != "own" or task.needs_spread


def mixing(clients: Clients, who: Sequence[int], own: Tensor, took_part: Tensor, message: Message) -> Mixing:
    """Return the clients that make mixtures as the message says; arguments as those of `Mixing`."""
    return KINDS[message["personal"]](clients, who, own, took_part, message)
