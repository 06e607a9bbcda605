"""Networks whose records are tokens: whole numbers from 0 to below V that an embedding looks up.

Records are float32 everywhere else, which holds whole numbers up to 2^24 exactly. Such a network is handed them as
whole numbers of 64 bits. Numbers that are no token count as the nearest one: an embedding would end the run over them,
and a run that ends tells of the records.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from sordino.errors import UserError

LARGEST_VOCABULARY = 2**24
"""Largest number of tokens that can be told apart in float32."""


def vocabulary(module: nn.Module) -> int | None:
    """The number of tokens V that a network declares as `inputs = "tokens:V"`; None where it takes any numbers."""
    declared = getattr(module, "inputs", None)
    if not isinstance(declared, str) or not declared.startswith("tokens:"):
        return None
    text = declared.removeprefix("tokens:")
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_VOCABULARY:
        raise UserError(
            f"inputs = {declared!r}: write 'tokens:V' with the number of tokens V, at most {LARGEST_VOCABULARY:,}."
        )
    return int(text)


def find_vocabulary(module: nn.Module, shape: tuple[int, ...]) -> int | None:
    """The number of tokens that a network declares, or else that the embedding has in which it looks its records up;
    None where it takes any numbers."""
    declared = vocabulary(module)
    return _vocabulary_of_embedding(module, shape) if declared is None else declared


def declare_tokens(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Make a network that takes tokens convert its records to whole numbers.

    A network that does not say how many tokens there are, but looks its records up in an embedding, takes as many as
    that embedding has.
    """
    count = find_vocabulary(module, shape)
    if count is None:
        return
    module.inputs = f"tokens:{count}"  # type: ignore[assignment]
    module.register_forward_pre_hook(functools.partial(_as_tokens, count))


def _as_tokens(count: int, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].nan_to_num().clamp(0, count - 1).long(), *inputs[1:])


def _vocabulary_of_embedding(module: nn.Module, shape: tuple[int, ...]) -> int | None:
    """The size of the smallest embedding that a network's records are looked up in; None where there is none.

    Told by two trials: positions, say, are looked up too, but they are the same for any records.
    """
    embeddings = [layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    if not embeddings:
        return None
    seen: list[list[tuple[nn.Module, Tensor]]] = []

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs:
            seen[-1].append((layer, inputs[0].detach().clone()))

    hooks = [layer.register_forward_pre_hook(look) for layer in embeddings]
    training = module.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for token in (0, 1):
                seen.append([])
                module.eval()(torch.full((1, *shape), token))
    except Exception:
        return None  # what is wrong with the network is told when it is tried on ordinary records
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    sizes = [
        int(layer.num_embeddings)  # type: ignore[arg-type]
        for (layer, zeros), (_, ones) in zip(*seen, strict=False)
        if zeros.shape != ones.shape or not torch.equal(zeros, ones)
    ]
    return min(sizes, default=None)


def examples(module: nn.Module, count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """`count` random records of `shape` that are nobody's: tokens where the network takes tokens, else normals."""
    generator, tokens = torch.Generator().manual_seed(seed), vocabulary(module)
    if tokens is None:
        return torch.randn(count, *shape, generator=generator)
    return torch.randint(0, tokens, (count, *shape), generator=generator).float()


def check_tokens(module: nn.Module, x: Tensor) -> None:
    """Refuse records that a network of tokens cannot look up."""
    count = vocabulary(module)
    if count is None or not len(x):
        return
    low, high = float(x.min()), float(x.max())
    if low < 0 or high >= count or not bool((x == x.floor()).all()):
        raise UserError(
            f"The network {type(module).__name__} takes tokens, whole numbers from 0 to {count - 1:,}, but the records "
            f"hold numbers from {low:g} to {high:g}: encode them as such, or declare inputs = 'tokens:V' for another V."
        )
