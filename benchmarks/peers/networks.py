"""The networks of the workloads in plain PyTorch, layer by layer those of `sordino.models`, which peers do not have."""

from __future__ import annotations

from torch import nn

CLASSES = 10


def lenet() -> nn.Module:
    """LeNet on 1x28x28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


def cnn() -> nn.Module:
    """FedDPA's network on 1x28x28, without dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.Linear(128, CLASSES),
    )


def mlp() -> nn.Module:
    """64 features, 64 hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


NETWORKS = {"lenet": lenet, "cnn": cnn, "mlp": mlp}
