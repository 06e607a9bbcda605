"""Networks of layers over positions for records of 8x8 pixels, by which tests compare devices."""

from __future__ import annotations

from torch import Tensor, nn


class Convolutions(nn.Sequential):
    """A convolution and a normalization."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, classes),
        )


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Residual(nn.Sequential):
    """A residual block between pooling layers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 4, 3, padding=1),
            nn.MaxPool2d(2),
            Block(4),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, classes),
        )
