"""Bases of methods: averaging at the server, a clipped update of each client, noisy gradients of records."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.descent import Descent, InPlace, Pull
from sordino.learning.network import Records
from sordino.method import (
    ADDED_LATER,
    LARGEST_EPSILON,
    LEAST_EPSILON,
    MAX_MAGNITUDE,
    Budget,
    Method,
    Positive,
    Schedule,
)
from sordino.parts.augmentation import Augmentation, change_of
from sordino.parts.ppo import LearnedThreshold
from sordino.parts.record_thresholds import Fixed as FixedForRecords
from sordino.parts.record_thresholds import RecordClipping
from sordino.parts.server_optimizers import SGD, ServerRule
from sordino.parts.thresholds import Fixed, LayerWise, Median, Normalised, Quantile, Random, Threshold
from sordino.privacy.budget.allowance import Outlook
from sordino.privacy.budget.record_level_plan import Batches, Varied
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.unit import Unit
from sordino.util.selectable import Named

RULES = {
    "fixed": Fixed,
    "quantile": Quantile,
    "normalised": Normalised,
    "median": Median,
    "layer-wise": LayerWise,
    "ppo": LearnedThreshold,
    "random": Random,
}
Clipping = Annotated[Threshold, Named(RULES)]
"""Rule for the clipping threshold: `fixed`; `quantile` (private, Andrew et al.); `normalised` (every update is
scaled to it, and it shrinks over the rounds); `median` (Geyer et al.: epsilon is infinite);
`layer-wise` (one for each layer, log-odds); `ppo` (a learning agent); `random` (a control for rules that choose)."""
SIZES = "How many records a client has shows in its sampling rate and its number of steps."
"""Sentence on what epsilon does not cover where records are protected."""
SIZES_IN_PASSES = (
    "How many records a client has shows in its number of steps. Which of them are in a batch together is not secret: "
    "epsilon has no amplification by sampling."
)
"""Sentence where passes deal all records to batches."""
SIZES_IN_SUMS = "How many records the clients of a round have together is public: sums over them are divided by it."
"""Sentence where sums over all clients' records leave, whose sampling rates do not depend on numbers of records."""


@dataclass(frozen=True)
class Averaging(Method):
    """A method whose server moves its models by means of the clients' updates."""

    server: ServerRule = field(default=SGD(), metadata=ADDED_LATER)
    """Rule by which the server moves a model along the mean update: `sgd` (at a rate of 1 plain averaging), `momentum`
    (FedAvgM), `adagrad`, `adam` or `yogi`, each with its own settings. It reads what was paid for, and costs no
    privacy."""


@dataclass(frozen=True)
class Clipped(Averaging):
    """A client-level method whose clients send one clipped and noised update."""

    clip: Positive = 0.5
    """The clipping threshold C, or the one to start from. FedDPA, FedGLP-ADP, ACDP-pFSD on EMNIST: 0.5."""
    clipping: Clipping = Fixed()
    """Rule for the threshold: `fixed`, `quantile`, `normalised`, `median`, `layer-wise`, `ppo` or `random`, each with
    its own settings."""
    augmentation: Augmentation = "none"
    """Change of images in each pass over the records: `crop` shifts them by up to 4 pixels, `crop-flip` also mirrors
    every other one. FedDPA's code: `crop-flip` on CIFAR-10, `crop` on SVHN."""

    @property
    def threshold(self) -> Threshold:
        """Rule for the threshold."""
        return self.clipping

    def descent(self, data: Records) -> Descent:
        return dataclasses.replace(super().descent(data), change=change_of(self.augmentation))

    def settled(self, clients: int) -> Clipped:
        return dataclasses.replace(self, clipping=self.clipping.settled(clients))

    def check_threshold_stays(self) -> None:
        """Refuse rules that move the threshold, for mechanisms that were published with a constant one."""
        if not isinstance(self.clipping, Fixed):
            raise UserError(
                f"{type(self).__name__} was published with a constant threshold: leave `clipping` out "
                "in the variant `paper`, or take the variant `sound`."
            )

    def needs_public(self) -> bool:
        return self.threshold.reads_public

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        return self.threshold.notes(schedule, budget)


@dataclass(frozen=True)
class RecordLevel(Averaging):
    """A method that protects each record of a client: what leaves is made of noisy gradients, or is a sum over all
    clients' records whose noise these share."""

    unit: ClassVar[Unit] = Unit.RECORD
    varied: ClassVar[Varied] = "noise"
    """Difference between clients with different budgets: their noise, or their sampling rate."""
    counts_all_rounds: ClassVar[bool] = False
    """Whether the published noise follows from the number of all rounds, not of those in which a client takes part."""

    clip: Positive = 1.0
    """The threshold C to which each record's gradient is scaled down."""
    budgets: str | None = None
    """The clients' own budgets instead of one for all: `0.05:0.6,0.1:0.3,1:0.1` deals epsilons by shares, `1,8,2,4`
    names one for each client."""
    batches: Batches = field(default="poisson", metadata=ADDED_LATER)
    """Records of a noisy gradient. `poisson`: each record enters by a secret coin, ceil(1/q) batches an epoch, and
    epsilon is amplified by sampling. `shuffled`: an epoch is one pass over all records, dealt at random to batches of
    equal size; a record pays in full for one batch an epoch. AdaDP-CFL's released code: `shuffled`."""

    def planned(self, outlook: Outlook) -> tuple[RecordLevel, list[str]]:
        """Return the method without those parts that the records' budget cannot pay for, and a sentence on each."""
        return self, []

    def trained(
        self, model: Tensor, data: PrivateRecords, pull: Pull | None = None, steps: int | None = None
    ) -> Tensor:
        """Return the model after a round's noisy gradient steps.

        Args:
            model: Flat vector to start from; it is not changed.
            data: The client's records.
            pull: Gradient of a penalty on the model, added to each noisy gradient.
            steps: Number of steps; by default all that the round is charged for.
        """
        model, optimizer = model.clone(), InPlace(self.optimizer, self.rate, self.momentum)
        for _ in range(data.steps if steps is None else steps):
            gradient = data.gradient(model)
            model = optimizer.step(model, gradient if pull is None else gradient + pull(model))
        return model

    def client_budgets(self, clients: int, epsilon: float, random: np.random.Generator) -> np.ndarray:
        """Return the epsilon of each client: dealt at random by shares, as listed, or `epsilon` for all."""
        if self.budgets is None:
            return np.full(clients, epsilon)
        try:
            parts = [tuple(float(x) for x in part.split(":")) for part in str(self.budgets).split(",")]
        except ValueError as error:
            raise self._not_understood() from error
        if any(not LEAST_EPSILON <= part[0] <= LARGEST_EPSILON for part in parts):
            raise UserError(
                f"budgets = {self.budgets!r}: every epsilon must lie between {LEAST_EPSILON:g} and {LARGEST_EPSILON:g}."
            )
        if all(len(part) == 1 for part in parts):
            if len(parts) != clients:
                raise UserError(f"budgets names {len(parts)} epsilons, but there are {clients} clients.")
            return np.array([part[0] for part in parts])
        if any(len(part) != 2 or not 0 < part[1] <= MAX_MAGNITUDE for part in parts):
            raise self._not_understood()
        shares = np.array([part[1] for part in parts]) / sum(part[1] for part in parts)
        ends = np.round(np.cumsum(shares) * clients).astype(int)
        counts = np.diff(np.concatenate([[0], ends]))
        return random.permutation(np.repeat([part[0] for part in parts], counts))

    def discloses(self) -> list[str]:
        if self.sends_sums():
            return [SIZES_IN_SUMS]
        return [SIZES_IN_PASSES if self.batches == "shuffled" else SIZES]

    def _not_understood(self) -> UserError:
        return UserError(
            f"budgets = {self.budgets!r} is not understood; write epsilons with shares, as in 0.05:0.6,0.1:0.3,1:0.1, "
            "or one epsilon for each client, as in 1,8,2,4."
        )


@dataclass(frozen=True)
class RecordClipped(RecordLevel):
    """A record-level method whose clients' thresholds may follow any rule."""

    clipping: RecordClipping = FixedForRecords()
    """Rule for each client's threshold: `fixed`, `quantile`, `median`, `percentile` or `dp-agr`, each with its own
    settings."""
