"""Gradients of single records by book-keeping: one forward, one backward, no gradient per record is kept.

`Book` keeps a page for each layer (`sordino.learning.pages`, where bounds are proven), and `Bookkeeper` fills it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.learning.pages import Page, rounding
from sordino.learning.records import Batch, Learner, Loss


class Book:
    """The pages of one batch, one for each layer with parameters, in the order of the flat vector."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = pages

    def layer_norms(self) -> Tensor:
        """What each record brings into a weighted sum at the most, over its weight, in each layer: (records, layers).

        It is at least the L2 norm of the record's gradient and of its share of all rounding, for weights up to one,
        and not finite where that is not known. In double precision.
        """
        return self._with_rounding([page.norms() for page in self.pages])

    def tensor_norms(self) -> Tensor:
        """The same in each tensor: (records, tensors)."""
        return self._with_rounding([norms for page in self.pages for norms in page.tensor_norms()])

    def part_norms(self, thresholds: int) -> Tensor:
        """The same in each tensor, where there are so many thresholds that they are for tensors, or else in each
        layer."""
        return self.tensor_norms() if thresholds > len(self.pages) else self.layer_norms()

    def _with_rounding(self, parts: list[Tensor]) -> Tensor:
        norms = torch.stack(parts, dim=1)
        # Weights rounded to float32, weighing and adding up; and the norms themselves.
        entries = sum(parameter.numel() for page in self.pages for parameter in page.layer.parameters())
        return norms * (1 + rounding(norms.shape[0] + 8, self.pages[0].inputs) + rounding(entries, norms))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The flat sum of the records' gradients times their weights: (records,), (records, layers) or
        (records, tensors)."""
        weights = weights.to(self.pages[0].inputs.dtype)
        by_part = weights.unsqueeze(1).expand(-1, len(self.pages)) if weights.dim() == 1 else weights
        if by_part.shape[1] > len(self.pages):
            by_page = by_part.split([page.parameters for page in self.pages], dim=1)
        else:
            by_page = by_part.unbind(dim=1)
        parts = [part for page, mine in zip(self.pages, by_page, strict=True) for part in page.weighted_sum(mine)]
        return torch.cat([part.reshape(-1) for part in parts])

    def sum_of_squares(self) -> Tensor:
        """The flat sum over records of squared gradients."""
        return torch.cat([part.reshape(-1) for page in self.pages for part in page.sum_of_squares()])


class Bookkeeper:
    """Keeps books for one network."""

    def __init__(self, learner: Learner) -> None:
        """Refuse a network with layers whose gradients for single records are not known."""
        self.learner = learner
        self.layers = supported_layers(learner.module)
        self._pages: dict[nn.Module, Page] = {}
        self._open, self._tried = False, False
        for _, layer in self.layers:
            layer.register_forward_hook(self._keep)

    def book(self, flat: Tensor, batch: Batch, loss: Loss) -> Book:
        """One forward and one backward pass at `flat`."""
        self.learner.bind(flat)
        self._try(batch.x)
        # As it was written: patches of channels-last maps would be copied once more.
        return self._filled(self.learner.written, batch, loss)

    def squares(self, flat: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """The flat sum over a batch of the squared gradients of single records at `flat`."""
        self.learner.bind(flat)
        return self._filled(self.learner.module, batch, loss).sum_of_squares()

    def pure_book(self, flat: Tensor, batch: Batch, loss: Loss) -> Book:
        """The same without touching the network's own parameters: slower, but it can be traced."""
        leaf = flat.detach().requires_grad_()
        return self._filled(lambda x: self.learner.logits(leaf, x), batch, loss)

    def _try(self, x: Tensor) -> None:
        """Refuse, the first time, a network whose layers do not see one row for each record.

        Two sizes of batches, because one may be the number of something else: of positions, or of rows of an image.
        """
        if self._tried:
            return
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for records in (2, 3):
                self._pages, self._open = {}, True
                try:
                    self.learner.written(x[:1].expand(records, *x.shape[1:]))
                finally:
                    self._open = False
                self._check_pages(records)
        self._tried = True

    def _check_pages(self, records: int) -> None:
        for name, layer in self.layers:
            page = self._pages.get(layer)
            if page is None:
                raise UserError(
                    f"The layer {name!r} is not called in a pass: gradients of single records are kept for called ones."
                )
            if page.inputs.shape[0] != records or page.outputs.shape[0] != records:
                raise UserError(
                    f"The layer {name!r} does not see one row for each record, so that no record's gradient can be "
                    "told from the others': keep records in the first dimension."
                )

    def _filled(self, network: Callable[[Tensor], Tensor], batch: Batch, loss: Loss) -> Book:
        self._pages, self._open = {}, True
        try:
            total = loss(network(batch.x), batch).sum()
        finally:
            self._open = False
        self._check_pages(batch.x.shape[0])
        pages = [self._pages[layer] for _, layer in self.layers]
        slopes = torch.autograd.grad(total, [page.outputs for page in pages])
        for page, slope in zip(pages, slopes, strict=True):
            page.slope = slope
        self._pages = {}
        return Book(pages)

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if not self._open:
            return
        if layer in self._pages:
            raise UserError("A layer is used twice in one pass: gradients of single records are not kept for it.")
        self._pages[layer] = Page(layer, inputs[0].detach(), outputs)


def supported_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers with parameters, by name; a UserError names one whose gradients for single records are not known."""
    checks: dict[type[nn.Module], Callable[[Any], bool]] = {
        nn.Linear: lambda layer: True,
        nn.Conv2d: lambda layer: (
            layer.groups == 1 and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
        ),
        nn.GroupNorm: lambda layer: True,
        nn.LayerNorm: lambda layer: True,
    }
    found = []
    seen: set[nn.Parameter] = set()
    for name, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own:
            continue
        check = checks.get(type(layer))
        known = check is not None and check(layer) and all(p.requires_grad for p in own.values())
        # Weights that are made of other parameters, or that two layers share, have other gradients than the layers'.
        if not known or own.keys() - {"weight", "bias"} or seen & set(own.values()):
            raise UserError(
                f"Gradients of single records are not known for the layer {name!r} ({type(layer).__name__}): record-"
                "level methods take networks of Linear, Conv2d (one group, padded with zeros), GroupNorm and LayerNorm "
                "layers that have weights of their own."
            )
        seen |= set(own.values())
        found.append((name, layer))
    return found
