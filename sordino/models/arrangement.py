"""How a network's layers are best run on a processor: the same function of the same parameters, sooner."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, channels_last, nn

KNOWN = (nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Linear)


class ChannelsLast(nn.Module):
    """Keeps the channels of each position together in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=channels_last)


def arranged(module: nn.Module) -> nn.Module:
    """A convolutional network with its maps kept channels-last, where that pays; any other as it is.

    Pooling reads maps several times faster so. Group normalization on a processor does not like it, and a network that
    is more than a plain sequence may look at its layers in ways that are not known here.
    """
    if type(module) is not nn.Sequential or not any(isinstance(layer, nn.MaxPool2d) for layer in module):
        return module
    if not all(isinstance(layer, KNOWN) for layer in module):
        return module
    layers: list[tuple[str, nn.Module]] = []
    for name, layer in module.named_children():
        layers.append((name, layer))
        if isinstance(layer, nn.Conv2d) and not any(isinstance(other, ChannelsLast) for _, other in layers):
            layers.append((f"{name}_channels_last", ChannelsLast()))
    return nn.Sequential(OrderedDict(layers))
