"""Record-level privacy: a step sees its client's records only through clipped and noised gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from sordino.errors import UserError
from sordino.parameters import Layout
from sordino.per_example import Bookkeeper
from sordino.privacy.clipping import clipped_sum
from sordino.privacy.noise import Seeded
from sordino.privacy.records import Charge
from sordino.training import Batch, Loss, cross_entropy

if TYPE_CHECKING:
    from sordino.privacy.compiled import CompiledSum


class PrivateRecords:
    """A client's records as a record-level step sees them: noisy gradients, and nothing else."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        validation: Tensor,
        bookkeeper: Bookkeeper,
        charge: Charge,
        clip: Tensor,
        source: Seeded,
        purpose: tuple[object, ...],
        bare: bool = False,
        compiled: CompiledSum | None = None,
    ) -> None:
        """`validation` says which records are set aside for judging; `clip` holds one threshold, or one for each
        layer; `purpose` names the client, round and step. `bare` hands out the records as they are: only for steps
        that declare a bare release, whose epsilon is infinite. `compiled` computes clipped sums where it fits.
        """
        self.__judge = (x[validation], y[validation])
        self.__bare = (x, y) if bare else None
        self.__x, self.__y = x[~validation], y[~validation]
        self.__bookkeeper, self.__source, self.__purpose = bookkeeper, source, purpose
        self.__compiled = compiled
        self.rate, self.multiplier, self.steps = charge
        self.clip = clip
        self.taken = 0
        self.expected_batch = self.rate * max(1, len(self.__y))

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self.__bookkeeper.learner.layout

    def gradient(self, flat: Tensor, loss: Loss = cross_entropy) -> Tensor:
        """The noisy mean gradient of a fresh Poisson-sampled batch, which may be empty.

        Sum of the records' gradients, each scaled down to the threshold, plus N(0, (z C)^2), divided by the expected
        batch size. With one threshold for each layer C^2 is the sum of their squares.
        """
        if self.taken >= self.steps:
            raise UserError(
                f"A step asked for more noisy gradients than the {self.steps} that were charged for a round."
            )
        purpose = (*self.__purpose, self.taken)
        self.taken += 1
        coins = torch.rand(len(self.__y), generator=self.__source.generator("coins", *purpose))
        chosen = (coins < self.rate).nonzero().squeeze(1).to(self.__y.device)
        total = self._clipped_sum(flat, chosen, loss)
        whole = torch.linalg.vector_norm(self.clip.double())
        noise = self.__source.normal(len(flat), *purpose).to(flat.device)
        return total.add_(noise, alpha=float(self.multiplier * whole)).div_(self.expected_batch)

    def judged(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and rightness (0 or 1) of each validation record, to be sent as an `Average`."""
        learner = self.__bookkeeper.learner
        learner.bind(flat)
        learner.module.eval()
        x, y = self.__judge
        with torch.no_grad():
            logits = learner.module(x)
        learner.module.train()
        losses = functional.cross_entropy(logits, y, reduction="none")
        return losses, (logits.argmax(dim=1) == y).to(losses.dtype)

    def projected(self, directions: Tensor) -> Tensor:
        """The training records along public directions (features, dimensions), to be sent as a `Matrix`."""
        return self.__x.flatten(1) @ directions

    def raw(self) -> tuple[Tensor, Tensor]:
        """The records as they are, for what a `paper` variant sends bare."""
        if self.__bare is None:
            raise UserError("A step without a bare release asked for its client's records as they are.")
        return self.__bare

    def _clipped_sum(self, flat: Tensor, chosen: Tensor, loss: Loss) -> Tensor:
        total = self._sum(flat, chosen, loss)
        if bool(torch.isfinite(total.sum())):  # a sum is finite only if every entry is
            return total
        # Zero times NaN is not zero: records whose gradients are not finite are left out altogether.
        book = self.__bookkeeper.book(flat, self._batch(chosen), loss)
        known = torch.isfinite(book.layer_norms()).all(dim=1)
        return self._sum(flat, chosen[known], loss)

    def _sum(self, flat: Tensor, chosen: Tensor, loss: Loss) -> Tensor:
        if len(chosen) == 0:
            return torch.zeros_like(flat)
        batch = self._batch(chosen)
        if self.__compiled is not None and self.__compiled.fits(len(chosen), self.clip, loss):
            return self.__compiled(flat, batch.x, batch.y, self.clip)
        return clipped_sum(self.__bookkeeper.book(flat, batch, loss), self.clip)

    def _batch(self, chosen: Tensor) -> Batch:
        return Batch(self.__x[chosen], self.__y[chosen], chosen, None)


def validation_records(count: int, share: float, source: Seeded, client: int) -> Tensor:
    """Which of a client's records are set aside: a choice that does not look at data, the same in every round.

    At least one record is set aside and at least one is not, where there are two.
    """
    chosen = torch.zeros(count, dtype=torch.bool)
    if share > 0 and count > 1:
        order = torch.randperm(count, generator=source.generator("validation", client))
        chosen[order[: min(count - 1, max(1, round(share * count)))]] = True
    return chosen
