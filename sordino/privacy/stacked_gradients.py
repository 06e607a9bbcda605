"""Record-level privacy of stacked clients: the same as `gradients`, with the gradients of all taken at once.

A step runs under `torch.func.vmap` and sees one client, as everywhere. What it may ask of that client's records is the
noisy gradient alone; steps that hand single records to the gate are run at one client after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.parameters import Layout
from sordino.learning.records import Learner
from sordino.learning.stacked import Chain
from sordino.learning.stacked_books import StackedBook
from sordino.learning.vmapped import under_vmap
from sordino.privacy.clipping import clipping_factors
from sordino.privacy.gate import StackedGradients


class Stack:
    """The records of several clients, whose noisy gradients are taken together."""

    def __init__(self, x: Tensor, y: Tensor, sizes: Sequence[int], learner: Learner, exit: StackedGradients) -> None:
        """`x` is (clients, records, ...) and `y` (clients, records), of which each client has the first of `sizes`."""
        assert learner.chain is not None
        self.__x, self.__y, self.__sizes, self.__exit = x, y, sizes, exit
        self.__chain: Chain = learner.chain
        self.layout, self.steps = learner.layout, exit.steps
        self.figures = {
            "place": torch.arange(len(sizes), device=x.device),
            "clip": torch.tensor([one.whole for one in exit.exits], device=x.device),
            "deviation": torch.tensor([one.deviation for one in exit.exits], device=x.device),
            "batch": torch.tensor(
                [one.sampling * max(1, size) for one, size in zip(exit.exits, sizes, strict=True)], device=x.device
            ),
        }
        """What is public of each client, one row each: for `vmap`, which hands one of each to `PrivateRows`."""

    def gradients(self, flat: Tensor, place: Tensor) -> Tensor:
        """The next noisy mean gradient of every client, one row each, at its row of `flat`."""
        if not torch.equal(place, self.figures["place"]):
            raise UserError("A step asked for the gradients of some stacked clients alone: take one for each client.")
        totals = self.__exit.pass_sums(self.__sizes, lambda chosen: self._clipped_sums(flat, chosen.to(flat.device)))
        return totals.div_(self.figures["batch"].unsqueeze(1))

    def _clipped_sums(self, flat: Tensor, chosen: Tensor) -> Tensor:
        """The sum of each client's chosen records' gradients, each scaled down to its threshold."""
        # Only as many places as the largest batch has: the chosen ones of each client first.
        most = int(chosen.sum(dim=1).max())
        if most == 0:
            return torch.zeros_like(flat)
        counts, order = chosen.to(torch.uint8).sort(dim=1, descending=True, stable=True)
        counts, order = counts[:, :most], order[:, :most]
        rows = torch.arange(len(flat), device=flat.device).unsqueeze(1)
        x, y, limits = self.__x[rows, order], self.__y[rows, order], self.__exit.limits.to(flat.device)
        book = self._book(flat, x, y)
        norms = book.layer_norms()
        factors = clipping_factors(norms, limits)
        totals = book.weighted_sum(factors * (counts if factors.dim() == 2 else counts.unsqueeze(2)))
        # Zero times NaN is not zero: of clients whose sum is not finite, records that are not are left out altogether.
        for client in (~torch.isfinite(totals.sum(dim=1))).nonzero().flatten().tolist():
            known = torch.isfinite(norms[client]).all(dim=1) & (counts[client] > 0)
            totals[client] = 0
            if known.any():
                only = slice(client, client + 1)
                book = self._book(flat[only], x[only, known], y[only, known])
                totals[only] = book.weighted_sum(clipping_factors(book.layer_norms(), limits[only]))
        return totals

    def _book(self, flat: Tensor, x: Tensor, y: Tensor) -> StackedBook:
        # Bounded for as many records as there are, which is public: not for as many as were chosen.
        return StackedBook.of(self.__chain, flat, x, y, self.__x.shape[1])


class PrivateRows:
    """One of stacked clients as its step sees it under `vmap`: noisy gradients, and nothing else."""

    failure = None
    """Nothing fails on records here alone: only networks of known layers are stacked."""

    def __init__(self, stack: Stack, figures: dict[str, Tensor]) -> None:
        """`figures` are this client's of `Stack.figures`."""
        self.__stack, self.__place = stack, figures["place"]
        self.clip, self.deviation = figures["clip"], figures["deviation"] / figures["batch"]
        self.expected_batch = figures["batch"]

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self.__stack.layout

    @property
    def steps(self) -> int:
        """How many noisy gradients may be taken for this question: equally many at all clients of a stack."""
        return self.__stack.steps

    def gradient(self, flat: Tensor) -> Tensor:
        """The noisy mean gradient of the cross-entropy over a fresh Poisson-sampled batch, which may be empty."""
        return under_vmap(self.__stack.gradients, flat, self.__place)

    def _refuse(self, *_: object) -> NoReturn:
        raise UserError(
            "A step that declares noisy gradients alone looked at single records: declare what it makes of them, or "
            "train clients one by one with `--set engine=one-by-one`."
        )

    within = judged = projected = raw = raw_metrics = raw_norms = _refuse
