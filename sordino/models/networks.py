"""Built-in networks (`NETWORKS`): linear models, MLPs, and the CNNs and ResNets of the papers. Where a network
normalises, it uses GroupNorm, which treats each record by itself."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.errors import UserError, quoted


def norm(channels: int) -> nn.GroupNorm:
    """A GroupNorm of at most 32 groups, which normalises each record by itself."""
    return nn.GroupNorm(min(32, channels), channels)


def sequence(**layers: nn.Module) -> nn.Sequential:
    """Layers one after the other, each under its name."""
    return nn.Sequential(OrderedDict(layers))


def append(net: nn.Sequential, **layers: nn.Module) -> nn.Sequential:
    """Add named layers to the end of `net`, which is returned."""
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def features(net: nn.Sequential, shape: tuple[int, ...]) -> int:
    """Number of outputs of `net` for one input; evaluated without dropout, which would draw randomness."""
    net.eval()
    with torch.no_grad():
        count = net(torch.zeros(1, *shape)).numel()
    net.train()
    return count


class Residual(nn.Module):
    """A residual block: after(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x) + self.shortcut(x))


def resnet9(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """AdaDP-CFL's: two residual blocks. The last pool takes the whole map, 4x4 for the paper's images."""
    return sequence(
        conv1=_conv_norm_relu(shape[0], 64),
        conv2=_conv_norm_relu(64, 128),
        pool2=nn.MaxPool2d(2),
        residual2=_residual9(128),
        conv3=_conv_norm_relu(128, 256),
        pool3=nn.MaxPool2d(2),
        conv4=_conv_norm_relu(256, 512),
        pool4=nn.MaxPool2d(2),
        residual4=_residual9(512),
        pool=nn.AdaptiveMaxPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(512, outputs),
    )


def resnet18(shape: tuple[int, ...], outputs: int, *, dropout: float = 0.0) -> nn.Module:
    """`dropout` is the rate before the last layer: ACDP-pFSD has none, PAC-DP one it does not state."""
    return _resnet(shape, outputs, (2, 2, 2, 2), dropout)


def resnet34(shape: tuple[int, ...], outputs: int, *, dropout: float = 0.0) -> nn.Module:
    """`dropout` is the rate before the last layer."""
    return _resnet(shape, outputs, (3, 4, 6, 3), dropout)


def _resnet(shape: tuple[int, ...], outputs: int, blocks: tuple[int, ...], dropout: float) -> nn.Module:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise UserError(f"The option 'dropout' of a ResNet is a rate from 0 to below 1, not {dropout!r}.")
    net = sequence(
        conv=nn.Conv2d(shape[0], 64, 3, padding=1, bias=False),
        norm=norm(64),
        relu=nn.ReLU(),
    )
    before = 64
    for stage, count in enumerate(blocks):
        channels = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            append(net, **{f"stage{stage + 1}_block{block + 1}": _basic_block(before, channels, stride)})
            before = channels
    return append(
        net,
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(dropout),
        fc=nn.Linear(before, outputs),
    )


def _basic_block(before: int, channels: int, stride: int) -> nn.Module:
    body = sequence(
        conv1=nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False),
        norm1=norm(channels),
        relu=nn.ReLU(),
        conv2=nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        norm2=norm(channels),
    )
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or before != channels:
        shortcut = sequence(conv=nn.Conv2d(before, channels, 1, stride=stride, bias=False), norm=norm(channels))
    return Residual(body, shortcut, after=nn.ReLU())


def _residual9(channels: int) -> nn.Module:
    body = sequence(first=_conv_norm_relu(channels, channels), second=_conv_norm_relu(channels, channels))
    return Residual(body, shortcut=nn.Identity(), after=nn.Identity())


def _conv_norm_relu(before: int, channels: int) -> nn.Sequential:
    return sequence(conv=nn.Conv2d(before, channels, 3, padding=1), norm=norm(channels), relu=nn.ReLU())


Shape = tuple[int, ...]
WIDEST = 1_000_000_000
"""Widest hidden layer that is accepted: more is taken for a typing error. Memory is checked when it is built."""


@dataclass(frozen=True)
class Network:
    """A network by name: its factory, and what a user should know before choosing it."""

    make: Callable[..., nn.Module]
    about: str
    """Description, with the paper it is from."""
    shape: Shape
    """Shape of one input in its paper, or a usual one."""
    classes: int
    """Classes of the data in its paper, or a usual number."""
    parameters: int
    """Number of parameters for `shape` and `classes` with default options."""
    least_side: int | None = None
    """The smallest image side it can take; None: inputs of any shape."""

    @property
    def description(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"{self.about}; {self.parameters:,} parameters for {size} inputs and {self.classes} classes"


def logistic(shape: Shape, outputs: int) -> nn.Module:
    return sequence(flatten=nn.Flatten(), fc=nn.Linear(math.prod(shape), outputs))


def head(shape: Shape, outputs: int) -> nn.Module:
    """Linear without a bias: in gradients of features of length 1 that of the bias is by far the longest part, and
    would take most of a clipped update."""
    return sequence(flatten=nn.Flatten(), fc=nn.Linear(math.prod(shape), outputs, bias=False))


class SharedSlope(nn.Module):
    """A linear function of a record, the same for all outputs but for an offset of each."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(1, inputs).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def hazards(shape: Shape, outputs: int) -> nn.Module:
    """Proportional odds of the event in all intervals of time, as Cox's model for discrete time (Cox 1972)."""
    return SharedSlope(math.prod(shape), outputs)


def mlp(shape: Shape, outputs: int, *, hidden: int | str | Sequence[int] = (64,)) -> nn.Module:
    """Linear layers with ReLU between them; `hidden` are the widths of the hidden ones: 64, [64, 64] or "64,64"."""
    widths = [math.prod(shape), *_widths(hidden)]
    net = sequence(flatten=nn.Flatten())
    for layer, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        append(net, **{f"fc{layer}": nn.Linear(before, after), f"relu{layer}": nn.ReLU()})
    return append(net, **{f"fc{len(widths)}": nn.Linear(widths[-1], outputs)})


def dnn_heart(shape: Shape, outputs: int) -> nn.Module:
    """PAC-DP's 13-10-1 network; its one sigmoid output is here one logit per class."""
    return mlp(shape, outputs, hidden=10)


def lenet(shape: Shape, outputs: int) -> nn.Module:
    net = sequence(
        conv1=nn.Conv2d(shape[0], 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        fc3=nn.Linear(84, outputs),
    )


def cnn(shape: Shape, outputs: int, *, dropout: bool = True) -> nn.Module:
    """FedDPA's FEMNIST network: a ReLU after the second convolution only, as in its public code."""
    _check_switch(dropout)
    net = sequence(
        conv1=nn.Conv2d(shape[0], 32, 3),
        conv2=nn.Conv2d(32, 64, 3),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout1=nn.Dropout(0.25 * dropout),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 128),
        dropout2=nn.Dropout(0.5 * dropout),
        fc2=nn.Linear(128, outputs),
    )


def cnn_svhn(shape: Shape, outputs: int, *, dropout: bool = True) -> nn.Module:
    """FedDPA's SVHN network: `cnn` with a ReLU after every layer but the last."""
    _check_switch(dropout)
    net = sequence(
        conv1=nn.Conv2d(shape[0], 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout1=nn.Dropout(0.25 * dropout),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 128),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5 * dropout),
        fc2=nn.Linear(128, outputs),
    )


def cnn_cifar(shape: Shape, outputs: int) -> nn.Module:
    net = sequence(
        conv1=nn.Conv2d(shape[0], 16, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(32, 32, 3, padding=1),
        relu3=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 512),
        relu4=nn.ReLU(),
        fc2=nn.Linear(512, 128),
        relu5=nn.ReLU(),
        fc3=nn.Linear(128, outputs),
    )


def cnn_emnist(shape: Shape, outputs: int, *, dropout: bool = True) -> nn.Module:
    """ACDP-pFSD's "8-layer" network: eight parameter tensors; dropout of channels, then features, at .5."""
    _check_switch(dropout)
    net = sequence(
        conv1=nn.Conv2d(shape[0], 10, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(10, 20, 5),
        dropout1=nn.Dropout2d(0.5 * dropout),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 50),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5 * dropout),
        fc2=nn.Linear(50, outputs),
    )


def cnn_mnist_pacdp(shape: Shape, outputs: int) -> nn.Module:
    net = sequence(
        conv1=nn.Conv2d(shape[0], 16, 8, stride=2, padding=3),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2, stride=1),
        conv2=nn.Conv2d(16, 32, 4, stride=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2, stride=1),
        flatten=nn.Flatten(),
    )
    return append(
        net,
        fc1=nn.Linear(features(net, shape), 32),
        relu3=nn.ReLU(),
        fc2=nn.Linear(32, outputs),
    )


def _widths(hidden: int | str | Sequence[int]) -> list[int]:
    try:
        if isinstance(hidden, str):
            widths = [int(width) for width in hidden.split(",")]
        else:
            widths = [hidden] if isinstance(hidden, int) else list(hidden)
    except (TypeError, ValueError):
        widths = []
    if not widths or any(type(width) is not int or not 1 <= width <= WIDEST for width in widths):
        raise UserError(
            f"The option 'hidden' is one or more positive widths of at most {WIDEST:,}, like 64 or '64,64', "
            f"not {quoted(hidden)}."
        )
    return widths


def _check_switch(dropout: bool) -> None:
    if not isinstance(dropout, bool):
        raise UserError(f"The option 'dropout' of this model is true (the paper's rates) or false, not {dropout!r}.")


NETWORKS: dict[str, Network] = {
    "logistic": Network(logistic, "Logistic regression", (1, 28, 28), 10, 7_850),
    "head": Network(head, "Linear without bias, for features of length 1", (128,), 62, 7_936),
    "hazards": Network(hazards, "One slope for all intervals of time, an offset for each", (12,), 10, 22),
    "mlp": Network(mlp, "Fully connected with ReLU, hidden=64", (1, 28, 28), 10, 50_890),
    "dnn-heart": Network(dnn_heart, "PAC-DP's heart-disease network, one hidden layer of 10", (13,), 2, 162),
    "lenet": Network(lenet, "AdaDP-CFL's CNN (LeNet-5 with ReLU)", (3, 32, 32), 10, 62_006, 16),
    "cnn": Network(cnn, "FedDPA's FEMNIST CNN, with dropout", (1, 28, 28), 62, 1_206_590, 6),
    "cnn-svhn": Network(cnn_svhn, "FedDPA's SVHN CNN, with dropout", (3, 32, 32), 10, 1_626_442, 6),
    "cnn-cifar": Network(cnn_cifar, "FedDPA's CIFAR-10 CNN", (3, 32, 32), 10, 343_946, 8),
    "cnn-emnist": Network(cnn_emnist, "ACDP-pFSD's EMNIST CNN, with dropout", (1, 28, 28), 47, 23_727, 16),
    "cnn-mnist-pacdp": Network(
        cnn_mnist_pacdp,
        "rPDP-FL's MNIST CNN (SampleConvNet), taken for PAC-DP's",
        (1, 28, 28),
        10,
        26_010,
        14,
    ),
    "resnet9": Network(resnet9, "AdaDP-CFL's ResNet-9, GroupNorm", (3, 32, 32), 10, 6_575_370, 8),
    "resnet18": Network(resnet18, "ACDP-pFSD's and PAC-DP's ResNet-18, GroupNorm", (3, 32, 32), 10, 11_173_962, 1),
    "resnet34": Network(resnet34, "PAC-DP's ResNet-34, GroupNorm", (3, 32, 32), 100, 21_328_292, 1),
}
