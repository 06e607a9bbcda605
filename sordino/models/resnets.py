"""ResNets for small images: a 3x3 stem of stride 1, no max-pool after it, GroupNorm for BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from sordino.errors import UserError
from sordino.models.layers import append, norm, sequence


class Residual(nn.Module):
    """after(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x) + self.shortcut(x))


def resnet9(shape: tuple[int, ...], classes: int) -> nn.Module:
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
        fc=nn.Linear(512, classes),
    )


def resnet18(shape: tuple[int, ...], classes: int, *, dropout: float = 0.0) -> nn.Module:
    """`dropout` is the rate before the last layer: ACDP-pFSD has none, PAC-DP one it does not state."""
    return _resnet(shape, classes, (2, 2, 2, 2), dropout)


def resnet34(shape: tuple[int, ...], classes: int, *, dropout: float = 0.0) -> nn.Module:
    """`dropout` is the rate before the last layer."""
    return _resnet(shape, classes, (3, 4, 6, 3), dropout)


def _resnet(shape: tuple[int, ...], classes: int, blocks: tuple[int, ...], dropout: float) -> nn.Module:
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
        fc=nn.Linear(before, classes),
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
