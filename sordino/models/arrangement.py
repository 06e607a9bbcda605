"""Faster layer order on a CPU (channels-last, ReLU after max-pooling): the same function of the same parameters."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

KNOWN = (nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Linear)


class ChannelsLast(nn.Module):
    """A layer that keeps the channels of each position together in memory, as the layers behind it then do too."""

    def forward(self, x: Tensor) -> Tensor:
        records, channels, high, wide = x.shape
        # Through one dimension, so that torch sees the order of the dimensions even where there is but one channel.
        return x.permute(0, 2, 3, 1).reshape(-1).view(records, high, wide, channels).permute(0, 3, 1, 2)


def arrange(module: nn.Module) -> nn.Module:
    """Rearrange a plain sequence of convolutions and poolings so that it runs fastest on a processor; any other network
    is returned as it is.

    Maps are kept channels-last, which pooling reads several times faster, and a ReLU is moved behind the max-pooling
    that follows it: max(relu(x)) = relu(max(x)), and the gradient goes to the same place. Group normalization is slower
    channels-last on a CPU, and a network that is not a plain `nn.Sequential` may use its layers in other ways.
    """
    if type(module) is not nn.Sequential or not all(isinstance(layer, KNOWN) for layer in module):
        return module
    if not all(any(isinstance(layer, kind) for layer in module) for kind in (nn.Conv2d, nn.MaxPool2d)):
        return module
    layers: list[tuple[str, nn.Module]] = [("channels_last", ChannelsLast())]
    for name, layer in module.named_children():
        behind = isinstance(layer, nn.MaxPool2d) and isinstance(layers[-1][1], nn.ReLU)
        layers.insert(len(layers) - behind, (name, layer))
    return nn.Sequential(OrderedDict(layers))
