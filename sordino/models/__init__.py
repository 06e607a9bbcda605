"""Networks by name: those of the papers, and a user's own by dotted name.

Every network maps a batch of inputs to raw logits of shape (batch, outputs). Where a paper's network ends
in log-softmax and is trained with the negative log-likelihood, ours ends one layer earlier and is trained
with cross-entropy: the same function of the same parameters.

Initial weights are drawn from torch's global generator: who seeds it decides the weights.
"""

from __future__ import annotations

import inspect
import math
import os
from typing import Any

import torch
from torch import nn

from sordino.errors import UserError, unknown
from sordino.models.checks import check
from sordino.models.networks import NETWORKS, Network
from sordino.models.own import load
from sordino.tasks import Survival, Task
from sordino.util.import_by_name import is_dotted

__all__ = ["build", "check", "check_task", "default", "linear", "names"]


def build(name: str, shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """The network `name`, from inputs (batch, *shape) to logits (batch, outputs).

    `shape` is that of one input, (channels, height, width) for images. A name with a dot or a colon is a
    user's own class or function (`package.module:Class`), called with those of `shape`, `classes` (the
    number of outputs) and the options that it accepts.
    """
    shape = tuple(shape)
    if not shape or min(shape) < 1:
        raise UserError(f"A network needs an input shape of positive sizes, not {shape}.")
    if is_dotted(name):
        return load(name, shape, outputs, options)
    if name not in NETWORKS:
        raise unknown("model", name, NETWORKS)
    network = NETWORKS[name]
    _check_options(name, network, options)
    _check_shape(name, network, shape)
    _check_memory(name, network, shape, outputs, options)
    return network.make(shape, outputs, **options)


def names() -> dict[str, str]:
    """Every built-in network by name, with one line on where it comes from and how large it is."""
    return {name: network.description for name, network in NETWORKS.items()}


def default(shape: tuple[int, ...]) -> str:
    """Name of the network that a user gets without asking for one: small, since noise grows with its parameters.

    `logistic` for rows of numbers, however many columns they have, and for images of at most 64 numbers; `lenet` for
    images of 28x28 and more; `mlp` for the rest. Where it is linear, `linear` says which one suits the task.
    """
    if len(shape) == 1 or math.prod(shape) <= 64:
        return "logistic"
    if len(shape) == 3 and min(shape[1:]) >= 28:
        return "lenet"
    return "mlp"


def linear(task: str) -> str:
    """Name of the linear network for a kind of task."""
    return "hazards" if task == Survival.name else "logistic"


def check_task(name: str, task: Task) -> None:
    """Refuse the network `name` for a task that it cannot learn: with one slope for all classes, or for all numbers, it
    would predict the same for all records, or the same of all numbers."""
    if name == linear(Survival.name) and task.name != Survival.name:
        raise UserError(
            f"The model {name!r} has one slope for all intervals of time, but the task is {task.name}: take logistic."
        )


def _check_options(name: str, network: Network, options: dict[str, Any]) -> None:
    known = [p.name for p in inspect.signature(network.make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if not known:
            raise UserError(f"The model {name!r} has no options; leave {option!r} out.")
        if option not in known:
            raise unknown(f"option of the model {name!r} called", option, known)


def _check_memory(name: str, network: Network, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> None:
    """Refuse a network whose weights, gradient and update this machine could not hold, before it is made."""
    if not options:
        return
    with torch.device("meta"):
        parameters = sum(part.numel() for part in network.make(shape, outputs, **options).parameters())
    needed, there = 3 * 4 * parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UserError(
            f"The model {name!r} with these options has {parameters:,} parameters: training it takes "
            f"{needed / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.0f}."
        )


def _check_shape(name: str, network: Network, shape: tuple[int, ...]) -> None:
    least = network.least_side
    if least is None:
        return
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(
            f"The model {name!r} needs images of shape (channels, height, width) with height and width of at "
            f"least {least}, not {shape}; for other inputs use 'mlp' or 'logistic'."
        )
