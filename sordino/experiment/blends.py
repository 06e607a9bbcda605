"""The blended predictors of a run: made in pieces of some clients, each of them durable as soon as it is made.

Blending may take longer than all rounds did. A run that is killed meanwhile finds its finished pieces again: the name
of a piece ends with the digest of its bytes, and one whose bytes are others is made anew, which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from sordino.errors import UserError
from sordino.federation.blending import RULES, figures_of
from sordino.federation.message import Message
from sordino.federation.rounds import Watch
from sordino.federation.transport import HostingTransport
from sordino.learning.metrics import ClientMetrics
from sordino.store.checkpoint import write_tensors
from sordino.tasks import Task
from sordino.util.files import digest_of, keep_file

RULES_OF = {"rules": "2"}
"""Metadata of a piece: version of the rules by which its clients trained and mixed models (2: held-out records choose
how a client trains alone)."""


@dataclass(frozen=True)
class Blends:
    """Blended predictors of all clients, and their accuracies."""

    clients: list[int]
    """Clients in the order of all rows below."""
    rules: dict[str, Tensor]
    """Weights, powers and offsets of the members of each client's mixture: `sordino.federation.blending.RULES`."""
    accuracies: np.ndarray
    """One row per client, with the columns `sordino.federation.blending.figures_of`."""
    sums: np.ndarray
    """Sums from which the metrics over all clients' records together are computed."""
    files: list[Path]
    """The pieces, in the order of the clients."""
    task: Task
    """Task that the mixtures are for."""

    def figures(self, *names: str) -> np.ndarray:
        """Columns of the accuracies by name, one row for each client by its number."""
        found = np.full((len(self.clients), len(names)), np.nan)
        found[self.clients] = self.accuracies[:, [figures_of(self.task).index(name) for name in names]]
        return found

    def reached(self) -> ClientMetrics:
        """Metrics of the blended predictors, one row for each client by its number."""
        return ClientMetrics(self.figures(*self.task.metrics), self.sums)

    def models(self) -> Iterator[Tensor]:
        """Models that clients trained for blending, one row each, in pieces that fit into memory."""
        for file in self.files:
            if not _whole(file):
                raise UserError(f"{file} is damaged, its bytes are not those that were written: resume the run.")
            yield load_file(file)["models"]


def make(transport: HostingTransport, message: Message, folder: Path, task: Task, watch: Watch | None = None) -> Blends:
    """Let every client blend its models.

    Args:
        transport: The way to the clients.
        message: The server's models, and how to blend them (`sordino.federation.blending.instructions`).
        folder: Where pieces are kept; those that are there already are not made again.
        task: What the mixtures predict.
        watch: Is told how many clients are done.
    """
    order: list[int] = []
    files, found = [], []
    for number, clients in enumerate(transport.pieces()):
        if watch is not None:
            watch.blending(len(order), transport.clients)
        path = _find(folder, number)
        if path is None:
            answer = transport.blend(clients, message)
            figures, added = np.split(answer.accuracies, [len(figures_of(task))], axis=1)
            measured = {"accuracies": torch.tensor(figures), "sums": torch.from_numpy(added.sum(axis=0))}
            path = _write(answer.values | measured, folder, number)
        files.append(path)
        with safe_open(path, framework="pt") as piece:  # its models stay on the disk
            found.append([piece.get_tensor(name) for name in (*RULES, "accuracies", "sums")])
        order += clients
    *columns, sums = zip(*found, strict=True)
    *rules, accuracies = (torch.cat(parts) for parts in columns)
    named = dict(zip(RULES, rules, strict=True))
    return Blends(order, named, accuracies.numpy(), torch.stack(sums).sum(dim=0).numpy(), files, task)


def _find(folder: Path, number: int) -> Path | None:
    """File of a piece, if it is there and whole; damaged ones, and those of versions with other rules, are removed."""
    for path in sorted(folder.glob(f"blend-{number:06d}-*")):
        if _whole(path) and _has_rules(path):
            return path
        path.unlink()
    return None


def _whole(path: Path) -> bool:
    """Whether a piece's bytes are those that were written."""
    return digest_of(path) == path.stem.rpartition("-")[2]


def _has_rules(path: Path) -> bool:
    """Whether a piece was made by the rules of this version, and says how members are mixed as it reads that."""
    with safe_open(path, framework="pt") as piece:
        return piece.metadata() == RULES_OF and set(piece.keys()).issuperset(RULES)


def _write(tensors: dict[str, Tensor], folder: Path, number: int) -> Path:
    """Write a piece; a crash leaves either nothing or the whole file."""
    temporary = folder / f"blend-{number:06d}.tmp"
    write_tensors(tensors, temporary, RULES_OF)
    final = folder / f"blend-{number:06d}-{digest_of(temporary)}.safetensors"
    return folder / keep_file(temporary, final).name
