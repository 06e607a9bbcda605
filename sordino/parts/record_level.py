"""Record-level methods: clients train on noisy gradients, each with its own budget, noise and ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from sordino.descent import InPlace
from sordino.errors import UserError
from sordino.method import LARGEST, LARGEST_EPSILON, LEAST_EPSILON, Budget, Method, Positive
from sordino.privacy.gradients import PrivateRecords
from sordino.training import Loss, cross_entropy


@dataclass(frozen=True)
class RecordLevel(Method):
    """A method that protects each record of a client: even the server sees only what noisy gradients made."""

    unit: ClassVar[Literal["client", "record"]] = "record"

    clip: Positive = 1.0
    """The threshold C to which each record's gradient is scaled down."""
    budgets: str | None = None
    """The clients' own budgets instead of one for all: `0.05:0.6,0.1:0.3,1:0.1` deals epsilons by shares, `1,8,2,4`
    names one for each client."""

    def trained(self, model: Tensor, data: PrivateRecords, loss: Loss = cross_entropy) -> Tensor:
        """The model after the round's noisy gradient steps."""
        model, optimizer = model.clone(), InPlace(self.optimizer, self.rate, self.momentum)
        for _ in range(data.steps):
            model = optimizer.step(model, data.gradient(model, loss))
        return model

    def client_budgets(self, clients: int, epsilon: float, random: np.random.Generator) -> np.ndarray:
        """The epsilon of each client: dealt at random by shares, as listed, or the same for all."""
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
        if any(len(part) != 2 or not 0 < part[1] <= LARGEST for part in parts):
            raise self._not_understood()
        shares = np.array([part[1] for part in parts]) / sum(part[1] for part in parts)
        ends = np.round(np.cumsum(shares) * clients).astype(int)
        counts = np.diff(np.concatenate([[0], ends]))
        return random.permutation(np.repeat([part[0] for part in parts], counts))

    def matrix_share(self) -> float:
        """The share of epsilon that a once-released second-moment matrix may cost; zero where there is none."""
        return 0.0

    def metrics(self) -> int:
        """How many noised means over validation records leave in a round."""
        return 0

    def validation_share(self) -> float:
        """The share of a client's training records that is set aside for such means."""
        return 0.0

    def notes(self, budget: Budget) -> list[str]:
        return []

    def _not_understood(self) -> UserError:
        return UserError(
            f"budgets = {self.budgets!r} is not understood; write epsilons with shares, as in 0.05:0.6,0.1:0.3,1:0.1, "
            "or one epsilon for each client, as in 1,8,2,4."
        )
