"""From an experiment to its results: configuration, preparation, runs, and what is kept of them."""

__all__ = [
    "blends",
    "budgeting",
    "config",
    "defaults",
    "hyperparameters",
    "identity",
    "prepare",
    "private_scaling",
    "result",
    "run",
]
