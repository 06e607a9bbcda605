"""Several models at the server, of which every client chooses one by itself (IFCA)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from sordino.errors import UserError
from sordino.learning.parameters import Layout
from sordino.learning.records import Records, cross_entropies


def check_count(clusters: int, clients: int) -> None:
    """Refuse more models than there are clients to choose them."""
    if clusters > clients:
        raise UserError(
            f"clusters is {clusters:,}, but every client chooses one model only: set it to {clients:,}, the number of "
            "clients, or less."
        )


def starts(model: Tensor, count: int, layout: Layout, random: Generator) -> Tensor:
    """So many models to start from, one row each: `model`, then its entries shuffled within each tensor.

    What is shuffled has the distribution of the initialisation, and tensors that start constant stay so.
    """
    rows = [model]
    for _ in range(count - 1):
        parts = [part[torch.randperm(len(part), generator=random)] for part in layout.tensors(model)]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def least_loss(models: Tensor, data: Records) -> tuple[Tensor, Tensor]:
    """The row of `models` whose mean loss on the client's training records is least, and its number."""
    losses = [(cross_entropies(data.logits(model), data.y) * data.weight).sum() for model in models]
    chosen = torch.stack(losses).argmin()
    return models.index_select(0, chosen.unsqueeze(0)).squeeze(0), chosen
