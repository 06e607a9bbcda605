"""Softmax regression in NumPy: nothing here knows of Flower or of Sordino."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FEATURES, CLASSES, BATCH = 64, 10, 16


def load(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Records and labels of a node."""
    with np.load(path) as found:
        return found["x"].reshape(len(found["x"]), -1).astype(np.float32), found["y"].astype(np.int64)


def begin() -> list[np.ndarray]:
    """Weights and biases before the first round."""
    return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def fit(arrays: list[np.ndarray], x: np.ndarray, y: np.ndarray, epochs: int, rate: float) -> list[np.ndarray]:
    """Weights after some passes of gradient descent over the records."""
    weights, biases = (array.copy() for array in arrays)
    random = np.random.default_rng()
    for _ in range(epochs):
        for chosen in np.array_split(random.permutation(len(y)), max(1, len(y) // BATCH)):
            slopes = probabilities([weights, biases], x[chosen])
            slopes[np.arange(len(chosen)), y[chosen]] -= 1
            weights -= rate * x[chosen].T @ slopes / len(chosen)
            biases -= rate * slopes.mean(axis=0)
    return [weights, biases]


def probabilities(arrays: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Probability of each class for each record."""
    scores = x @ arrays[0] + arrays[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def accuracy(arrays: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Share of the records whose most probable class is theirs."""
    return float((probabilities(arrays, x).argmax(axis=1) == y).mean())
