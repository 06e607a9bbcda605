"""The small pieces that networks are put together from."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels)


def sequence(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def append(net: nn.Sequential, **layers: nn.Module) -> nn.Sequential:
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def features(net: nn.Sequential, shape: tuple[int, ...]) -> int:
    """How many numbers `net` makes of one input; evaluated without dropout, which would draw randomness."""
    net.eval()
    with torch.no_grad():
        count = net(torch.zeros(1, *shape)).numel()
    net.train()
    return count
