"""Next-token prediction: a record is a sequence, and a network predicts each of its tokens from those before it.

Inputs are the first T tokens of a sequence of T + 1, targets (T,) the last T. A network gives T logits for each of V
tokens, flattened: (records, T * V). The loss of a record is the mean over its positions, so that a sequence of any
length moves a model by one record's gradient, and the record that is protected is the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sordino.errors import UserError
from sordino.tasks.classification import effective_records, shares_of
from sordino.tasks.recalibration import fit_recalibration, power
from sordino.tasks.task import Task

TOKENS = "tokens"
"""Array of a client's file with the sequences; `tokens_test` has its own test sequences."""
SMOOTHING = 3.0
"""Times that each token is counted too often where models are adjusted to a client's tokens."""


def write_sequences(tokens: np.ndarray) -> list[str]:
    """Each row of whole numbers as text, with spaces between them."""
    return [" ".join(map(str, row)) for row in tokens.tolist()]


@dataclass(frozen=True)
class NextToken(Task):
    """The next token at each position; targets are (records, T) numbers of tokens, int64 from 0."""

    vocabulary: int
    """Number of tokens V."""
    length: int
    """Number of positions T."""

    name: ClassVar[str] = "next token"
    dtype: ClassVar[torch.dtype] = torch.int64
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "perplexity")
    lower_is_better: ClassVar[tuple[str, ...]] = ("perplexity",)
    score: ClassVar[str] = "accuracy"
    output: ClassVar[str] = "probabilities"
    judged: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"the next of {self.vocabulary} tokens at {self.length} positions"

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def width(self) -> int:
        return self.length * self.vocabulary

    @property
    def told(self) -> int:
        return self.width

    @property
    def outcomes(self) -> str:
        return f"{self.vocabulary} tokens"

    @property
    def wish(self) -> str:
        return f"to predict {self}"

    strange: ClassVar[str] = "which is no sequence of declared tokens"

    def parse(self, texts: Sequence[str]) -> np.ndarray:
        """(records, T): targets written as their numbers with spaces between them; -1 for all of a sequence that has
        another length or another token."""
        found = np.full((len(texts), self.length), -1, dtype=np.int64)
        for row, text in zip(found, texts, strict=True):
            tokens = text.split()
            known = len(tokens) == self.length and all(one.isdecimal() and int(one) < self.vocabulary for one in tokens)
            if known:
                row[:] = [int(one) for one in tokens]
        return found

    def text(self, targets: np.ndarray) -> list[str]:
        return write_sequences(targets)

    def arrays(self, x: np.ndarray, y: np.ndarray, ending: str = "") -> dict[str, Any]:
        """Whole sequences, from the first input to the last target."""
        return {f"{TOKENS}{ending}": np.concatenate([x[:, :1].astype(np.int64), y], axis=1)}

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.vocabulary)))

    @property
    def positive_name(self) -> str | None:
        return None

    def document(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary, "length": self.length}

    def check(self) -> None:
        if self.vocabulary < 2:
            raise UserError(f"A network needs at least 2 tokens to tell apart, not {self.vocabulary}.")

    def admits(self, other: Task) -> bool:
        return isinstance(other, NextToken) and (other.vocabulary, other.length) == (self.vocabulary, self.length)

    def _by_position(self, outputs: Tensor) -> Tensor:
        """Outputs (..., width) as (..., T, V)."""
        return outputs.unflatten(-1, (self.length, self.vocabulary))

    def _of_targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Logarithm of the probability of each target: (..., T)."""
        said = torch.log_softmax(self._by_position(outputs), dim=-1)
        return said.gather(-1, targets.expand(said.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -self._of_targets(outputs, targets).mean(dim=-1)

    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        slope = torch.softmax(self._by_position(outputs), dim=-1)
        ones = slope.new_full((), -1.0).expand(*targets.shape, 1)
        return slope.scatter_add(-1, targets.unsqueeze(-1), ones).div_(self.length).flatten(-2)

    def stacked_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).sum()

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of a record's tokens that are predicted rightly: (..., records)."""
        return (self._by_position(outputs).argmax(dim=-1) == targets).float().mean(dim=-1)

    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        outputs = outputs.double()
        lost = self.losses(outputs, targets).nan_to_num(nan=math.log(self.vocabulary))
        each = torch.stack([self.right(outputs, targets).double(), lost, torch.ones_like(lost)], dim=1).numpy()
        ends = np.cumsum(sizes)
        return np.array([each[end - size : end].sum(axis=0) for end, size in zip(ends, sizes, strict=True)])

    def no_sums(self) -> np.ndarray:
        return np.zeros(3)

    def figures(self, sums: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return np.stack([sums[:, 0] / sums[:, 2], np.exp(sums[:, 1] / sums[:, 2])], axis=1)

    def group(self, targets: np.ndarray) -> np.ndarray:
        """The last token of each sequence."""
        return np.asarray(targets[:, -1])

    @property
    def counted(self) -> int:
        return self.vocabulary

    def counts(self, targets: Tensor) -> Tensor:
        return one_hot(targets[..., -1], self.vocabulary).float()

    def frequencies_of(self, means: Tensor, records: float) -> Tensor:
        """Shares of the tokens from noisy means of `counts`, each of at least one record."""
        return shares_of(means, records)

    def start(self, means: Tensor, records: float) -> Tensor:
        bias = shares_of(means, records).log()
        return bias - bias.mean()

    def effective_records(self, targets: np.ndarray) -> float:
        return effective_records(self.group(targets), self.vocabulary)

    def shift(self, targets: Tensor, steps: int) -> Tensor:
        return (targets + steps) % self.vocabulary

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        return torch.from_numpy(random.integers(0, self.vocabulary, (count, self.length)))

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        return torch.log_softmax(self._by_position(outputs), dim=-1).flatten(-2)

    def likelihoods(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        said = self._by_position(log_probabilities)
        return said.gather(-1, targets.expand(said.shape[:-1]).unsqueeze(-1)).squeeze(-1).sum(dim=-1)

    def sharpen(self, log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        return self.log_probabilities(powers * log_probabilities + offsets)

    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        return torch.logsumexp(log_probabilities + log_weights, dim=0)

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        return power(self, log_probabilities, targets, offsets), torch.zeros(self.width)

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        power, offsets = fit_recalibration(self._by_position(log_probabilities).flatten(0, 1), targets.flatten())
        return power, offsets.repeat(self.length)

    def frequencies(self, targets: Tensor) -> Tensor:
        return self._shares(torch.bincount(targets.flatten(), minlength=self.vocabulary))

    def frequencies_without_each(self, targets: Tensor) -> Tensor:
        counts = torch.bincount(targets.flatten(), minlength=self.vocabulary)
        own = torch.zeros(len(targets), self.vocabulary, dtype=counts.dtype)
        own.scatter_add_(1, targets, torch.ones_like(targets))
        return self._shares(counts - own)

    def _shares(self, counts: Tensor) -> Tensor:
        """Smoothed shares of tokens (..., V) as logarithms, the same at each position: (..., width)."""
        shares = torch.log_softmax((counts + SMOOTHING).log(), dim=-1)
        return shares.repeat(*(1 for _ in shares.shape[1:]), self.length)

    def predict(self, outputs: Tensor) -> Tensor:
        return torch.softmax(self._by_position(outputs), dim=-1).flatten(-2)

    @property
    def predicted(self) -> int:
        return self.width

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"probability_{at}_{token}" for at in range(self.length) for token in range(self.vocabulary))

    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        """The most probable token behind the last one of each sequence."""
        return [str(token) for token in predicted[:, -self.vocabulary :].argmax(axis=1).tolist()]

    def count(self, told: Sequence[str]) -> dict[str, int]:
        return {name: told.count(name) for name in dict.fromkeys(told)}
