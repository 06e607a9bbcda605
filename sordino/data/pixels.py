"""How the stored pixels of each image data set become inputs of about mean 0 and deviation 1.

The constants are published figures of whole public data sets, so that they tell nothing about a client's records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Pixels:
    """(brightness - mean) / deviation, with brightness 0 for the lowest stored value and 1 for the highest."""

    mean: tuple[float, ...]
    """Of the brightness, one per channel."""
    deviation: tuple[float, ...]
    """Of the brightness, one per channel."""
    ink_is_dark: bool = False
    """Whether the brightness is turned round first, so that ink is bright on a dark ground as in MNIST."""


PIXELS: dict[str, Pixels] = {
    # Of the 1,797 images inside scikit-learn, over their range 0..16.
    "digits": Pixels((0.3053,), (0.3760,)),
    # As in PyTorch's example of MNIST: https://github.com/pytorch/examples/blob/main/mnist/main.py
    "mnist": Pixels((0.1307,), (0.3081,)),
    # Of the published training images, as given for torchvision's FashionMNIST.
    "fashion-mnist": Pixels((0.2860,), (0.3530,)),
    # Of each split, as in Lightning Bolts' `emnist_normalization`.
    "emnist": Pixels((0.175,), (0.333,)),
    "emnist-letters": Pixels((0.172,), (0.331,)),
    "emnist-digits": Pixels((0.173,), (0.332,)),
    "emnist-bymerge": Pixels((0.174,), (0.332,)),
    "emnist-byclass": Pixels((0.174,), (0.332,)),
    # Of the published training images by channel; the variance is that over all pixels.
    "cifar10": Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Pixels((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    # FederatedScope's documentation gives .9637 and .1592 for LEAF's images; turned round, the mean is 1 - .9637.
    "femnist": Pixels((0.0363,), (0.1592,), ink_is_dark=True),
}


def inputs(name: str, stored: np.ndarray, highest: float = 255.0) -> torch.Tensor:
    """Stored pixels (n, channels, height, width) of a data set, from 0 to `highest`, as float32 inputs."""
    pixels = PIXELS[name]
    x = torch.from_numpy(stored.astype(np.float32)).div_(highest)
    if pixels.ink_is_dark:
        x.neg_().add_(1)
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (pixels.mean, pixels.deviation))
    return x.sub_(mean).div_(deviation)
