"""Norms and weighted sums of per-record gradients from one forward and one backward pass, without storing any of these
gradients: ghost clipping with book-keeping.

`Book` keeps a page for each layer (`sordino.learning.pages`, where bounds are proven), and `Bookkeeper` fills it. That
is for networks that are proven to work on each record by itself (`sordino.learning.recordwise`). For any other network
`keeper_of` falls back to gradients of single records under `vmap` (`sordino.learning.singles`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.pages import Page, rounding
from sordino.learning.parameters import flatten
from sordino.learning.recordwise import prove_recordwise
from sordino.learning.singles import Singles
from sordino.learning.vmapped import obstacle
from sordino.models.checks import MIXES
from sordino.models.tokens import examples

TRIED = 33
"""Number of records on which a network is tried where book-keeping is not proven."""
VISIBLE = 1e-3
"""Share of the largest number by which gradients and answers must differ to count as mixed: rounding is far below."""


class Contributions(Protocol):
    """Contributions of a batch's records to its sum of gradients."""

    def part_norms(self, thresholds: int) -> Tensor: ...
    def weighted_sum(self, weights: Tensor) -> Tensor: ...
    def blank(self, records: Tensor) -> None: ...


class Keeper(Protocol):
    """Takes gradients and logits of one network for single records, each record by itself."""

    learner: Learner

    def books(self, flat: Tensor, batch: Batch) -> Iterator[Contributions]:
        """Contributions of a batch's records at `flat`, in parts whose sums add up to that of the batch."""

    def squares(self, flat: Tensor, batch: Batch) -> Tensor:
        """The flat sum over a batch of the squared gradients of single records at `flat`."""

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """Logits of the model `flat` for each record, without dropout and without gradients."""


class Book:
    """The pages of one batch, one for each layer with parameters, in the order of the flat vector."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = pages

    def layer_norms(self) -> Tensor:
        """Upper bounds of each record's contribution to a weighted sum, over its weight, by layer: (records, layers).

        It is at least the L2 norm of the record's gradient and of its share of all rounding, for weights up to one,
        and not finite where that is not known. In double precision.
        """
        return self._with_rounding([page.norms() for page in self.pages])

    def tensor_norms(self) -> Tensor:
        """`layer_norms` by tensor: (records, tensors)."""
        return self._with_rounding([norms for page in self.pages for norms in page.tensor_norms()])

    def part_norms(self, thresholds: int) -> Tensor:
        """`tensor_norms` where there are more `thresholds` than layers, else `layer_norms`."""
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

    def blank(self, records: Tensor) -> None:
        """Forget the gradients of some records, a boolean for each: they are zero from now on."""
        for page in self.pages:
            page.blank(records)

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
        self._networks: dict[bool, nn.Module] = {}
        self._proven: tuple[object, ...] | None = None

    def book(self, flat: Tensor, batch: Batch) -> Book:
        """One forward and one backward pass at `flat`."""
        self.prove(tuple(batch.x.shape[1:]), batch.x.dtype, batch.x.device)
        self.learner.bind(flat)
        # As it was written: patches of channels-last maps would be copied once more.
        return self._filled(self._network, batch)

    def books(self, flat: Tensor, batch: Batch) -> Iterator[Book]:
        """The book of a whole batch."""
        yield self.book(flat, batch)

    def squares(self, flat: Tensor, batch: Batch) -> Tensor:
        """The flat sum over a batch of the squared gradients of single records at `flat`."""
        self.learner.bind(flat)
        return self._filled(self.learner.module, batch).sum_of_squares()

    def pure_book(self, flat: Tensor, batch: Batch) -> Book:
        """Do as `book` for a proven network, without touching its own parameters: slower, but it can be traced."""
        named = self.learner.layout.named(flat.detach().requires_grad_())
        return self._filled(lambda x: functional_call(self._network, named, (x,)), batch)

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """Logits of the model `flat` for each record, without dropout and without gradients."""
        self.prove(tuple(x.shape[1:]), x.dtype, x.device)
        self.learner.bind(flat)
        self.learner.module.eval()
        # A network that was arranged anew is a plain sequence of the layers that were looked at.
        arranged = self.learner.module is not self.learner.written
        try:
            with torch.no_grad():
                found: Tensor = (self.learner.module if arranged else self._network)(x)
        finally:
            self.learner.module.train()
        return found

    def prove(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: torch.device = torch.device("cpu"),  # noqa: B008 (a constant)
    ) -> None:
        """Refuse, the first time, a network that is not proven to work on each record of `shape` by itself, or whose
        layers do not see one row for each record.

        Two sizes of batches, because one may be the number of something else: of positions, or of rows of an image.
        """
        if self._proven == (shape, dtype, device):
            return
        training = self.learner.module.training
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for records in (2, 3):
                with self._pages_kept():
                    self.learner.written(torch.zeros(records, *shape, dtype=dtype, device=device))
                self._check_pages(records)
        try:
            for mode in (True, False):
                self._networks[mode] = prove_recordwise(self.learner.written.train(mode), shape, dtype, device)
        finally:
            self.learner.written.train(training)
        self._proven = (shape, dtype, device)

    @property
    def _network(self) -> nn.Module:
        """The network in its present mode, as it was proven."""
        return self._networks[self.learner.module.training]

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

    def _filled(self, network: Callable[[Tensor], Tensor], batch: Batch) -> Book:
        with self._pages_kept():
            total = self.learner.loss(network(batch.x), batch).sum()
        self._check_pages(batch.x.shape[0])
        pages = [self._pages[layer] for _, layer in self.layers]
        slopes = torch.autograd.grad(total, [page.outputs for page in pages])
        for page, slope in zip(pages, slopes, strict=True):
            page.slope = slope
        self._pages = {}
        return Book(pages)

    @contextlib.contextmanager
    def _pages_kept(self) -> Iterator[None]:
        """Keep a page of every layer that is called inside; earlier pages are dropped."""
        self._pages = {}
        hooks = [layer.register_forward_hook(self._keep) for _, layer in self.layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if layer in self._pages:
            raise UserError("A layer is used twice in one pass: gradients of single records are not kept for it.")
        self._pages[layer] = Page(layer, inputs[0].detach(), outputs)


def supported_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers with trainable parameters, by name; a UserError names one whose gradients for single records are not
    known. Frozen layers have no gradients."""
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
        known = check is not None and check(layer)
        frozen = not any(parameter.requires_grad for parameter in own.values())
        if known and frozen:
            continue
        # Weights that are made of other parameters, or that two layers share, have other gradients than the layers'.
        apart = all(parameter.requires_grad for parameter in own.values()) and not seen & set(own.values())
        if not known or not apart or own.keys() - {"weight", "bias"}:
            raise UserError(
                f"Gradients of single records are not known for the layer {name!r} ({type(layer).__name__}): record-"
                "level methods take networks of Linear, Conv2d (one group, padded with zeros), GroupNorm and LayerNorm "
                "layers that have weights of their own."
            )
        seen |= set(own.values())
        found.append((name, layer))
    return found


def keeper_of(learner: Learner, shape: tuple[int, ...]) -> Keeper:
    """Choose how gradients of single records of `shape` are taken: by book-keeping where the network provably works on
    each record by itself, otherwise under `vmap`.

    Both are tried here, on records that are nobody's. UserError tells what a network does that cannot be done for one
    record, or that what it says of one record changes with the others.
    """
    try:
        keeper = Bookkeeper(learner)
        keeper.prove(shape, device=next(learner.written.parameters()).device)
    except Exception:  # whatever it is, the next trial tells of it if it matters there
        singles = Singles(learner)
        _try_out(singles, shape)
        return singles
    return keeper


def _try_out(singles: Singles, shape: tuple[int, ...]) -> None:
    """Refuse a network that cannot be run under `vmap`, or whose records visibly mix in a batch.

    Where they mix it would be trained on single records and predict on batches: another function.
    """
    learner = singles.learner
    flat, device = flatten(learner.written), next(learner.written.parameters()).device
    # Of different sizes, so that what looks at the largest of all looks at another record's.
    scales = (10.0 ** (torch.arange(TRIED) % 3)).view(-1, *(1 for _ in shape))
    x = (examples(learner.written, TRIED, shape, seed=3) * scales).to(device)
    y = torch.zeros(TRIED, *learner.task.target_shape, dtype=learner.task.dtype, device=device)
    batch = Batch(x, y, torch.arange(TRIED, device=device), None)
    with torch.random.fork_rng(devices=[]):
        try:
            ones = flat.new_ones(TRIED)
            books = list(singles.books(flat, batch))
            alone = sum(book.weighted_sum(ones[: len(book.gradients)]) for book in books) / TRIED
            said = singles.logits(flat, x)
            together, again = (learner.gradient(flat, batch) for _ in range(2))
            with torch.no_grad():
                answers = learner.module.eval()(x)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"The network {type(learner.written).__name__} cannot be run for one record at a time, as it must be "
                f"where records are protected: {obstacle(error)}."
            ) from error
        finally:
            learner.module.train()
    random = not _alike(together, again)  # dropout: other numbers are drawn for single records
    if not _alike(answers, said) or not (random or _alike(together, torch.as_tensor(alone))):
        raise UserError(f"The network {type(learner.written).__name__} {MIXES}")


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    return torch.allclose(one, other, rtol=VISIBLE, atol=VISIBLE * float(one.abs().max()), equal_nan=True)
