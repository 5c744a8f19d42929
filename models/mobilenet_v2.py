"""MobileNetV2: torchvision's, and for CIFAR the same with three strides left out.

Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018, https://arxiv.org/abs/1801.04381
"""

from typing import Any

from torch import nn

from ._imagenet import is_large, of_torchvision
from ._vision import PadCropFlip, cifar, plain_unless_colored

# For a batch of 128, over 200 epochs.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    60: {"lr": 0.02},
    120: {"lr": 0.004},
    160: {"lr": 0.0008},
}
epochs = 200
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}

_STAGES = [  # expansion, channels, blocks, stride: the paper's table 2, its first stride 1
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]


def mobilenet_v2(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    width: float = 1.0,
    dropout: float = 0.2,
    blocks: int | None = None,
    form: str = "auto",
) -> nn.Module:
    """Return the network, all channels times `width`, at most `blocks` blocks in a stage.

    `form` is "cifar", "imagenet", or "auto": images above 96 pixels get all strides, and settings
    that are fixed. Raises `ValueError` for a form that does not exist.
    """
    if is_large(input_shape, form):
        return of_torchvision("mobilenet_v2", num_classes, input_shape)
    from torchvision import models

    stages = [[t, c, n if blocks is None else min(n, blocks), s] for t, c, n, s in _STAGES]
    network: Any = models.MobileNetV2(num_classes, width, stages, dropout=dropout)
    first = network.features[0][0]
    network.features[0][0] = _like(first, input_shape[0])
    return plain_unless_colored(network, input_shape)


def _like(first: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return the first convolution without its stride, drawn as torchvision draws it."""
    convolution = nn.Conv2d(channels, first.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
    return convolution
