"""Small text, and networks that read it: one label for a record, or the next token at each position."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

WORDS = 24
"""Number of different words."""


def sentences(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences (count, length) about one of two topics, and the topic: of each topic's four words a third of the
    sentence is made, the rest of words that both share."""
    random = np.random.default_rng(seed)
    topic = random.integers(0, 2, count)
    x = random.integers(8, WORDS, (count, length))
    about = random.random((count, length)) < 1 / 3
    return np.where(about, random.integers(0, 4, (count, length)) + 4 * topic[:, None], x), topic


def songs(count: int, length: int, seed: int) -> np.ndarray:
    """Sequences (count, length) in which each of six words is followed by the next, with one error in ten."""
    random = np.random.default_rng(seed)
    right = (random.integers(0, 6, (count, 1)) + np.arange(length)) % 6
    return np.where(random.random((count, length)) < 0.1, random.integers(0, 6, (count, length)), right)


class Transformer(nn.Module):
    """One layer of attention over a record's words, and the mean over them."""

    inputs = f"tokens:{WORDS}"

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(shape[0], width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(self.words(x) + self.places).mean(dim=1))
        return found


class NextTransformer(nn.Module):
    """One layer of attention over the words so far, and logits for the next one at each position."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 8) -> None:
        super().__init__()
        vocabulary = classes // shape[0]
        self.words = nn.Embedding(vocabulary, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.last = nn.Linear(width, vocabulary)
        self.register_buffer("before", nn.Transformer.generate_square_subsequent_mask(shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.words(x), src_mask=self.before)).flatten(1)  # type: ignore[no-any-return]


class NextLSTM(nn.Module):
    """A recurrent network that says the next word at each position."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 8) -> None:
        super().__init__()
        vocabulary = classes // shape[0]
        self.words = nn.Embedding(vocabulary, width)
        self.reading = nn.LSTM(width, width, batch_first=True)
        self.last = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.reading(self.words(x))[0]).flatten(1)  # type: ignore[no-any-return]
