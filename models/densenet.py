"""Densely connected networks: BC of growth 12 for CIFAR, torchvision's 121 to 201 for ImageNet.

Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017,
https://arxiv.org/abs/1608.06993
"""

from typing import Any

from torch import nn

from ._imagenet import is_large, of_torchvision
from ._vision import MOST_LAYERS, PadCropFlip, cifar, plain_unless_colored

# For a batch of 64, as in the paper.
regime = {
    0: {
        "optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True,
    },
    150: {"lr": 0.01},
    225: {"lr": 0.001},
}  # fmt: skip
epochs = 300
batch = 64
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}

_IMAGENET = (121, 161, 169, 201)


def densenet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    depth: int | None = None,
    growth: int = 12,
    dropout: float = 0.0,
    form: str = "auto",
) -> nn.Module:
    """Return a network of `depth` layers, by default 100, each adding `growth` channels.

    `form` is "cifar", "imagenet", or "auto": images above 96 pixels get torchvision's network, of
    121 layers by default, whose growth is fixed. Raises `ValueError` for a depth or a form that
    does not exist.
    """
    if is_large(input_shape, form):
        depth = 121 if depth is None else depth
        if depth not in _IMAGENET:
            raise ValueError(f"depth must be one of {', '.join(map(str, _IMAGENET))}, not {depth}")
        return of_torchvision(f"densenet{depth}", num_classes, input_shape)
    depth = 100 if depth is None else depth
    if not isinstance(depth, int) or not 10 <= depth <= MOST_LAYERS or depth % 6 != 4:
        raise ValueError(
            f"depth must be 6n + 4 (40, 100, 190), at most {MOST_LAYERS:,}, not {depth}"
        )
    from torchvision import models

    layers = (depth - 4) // 6  # of each block, each of two convolutions
    network: Any = models.DenseNet(
        growth, (layers,) * 3, 2 * growth, drop_rate=dropout, num_classes=num_classes
    )
    network.features.conv0 = nn.Conv2d(input_shape[0], 2 * growth, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(network.features.conv0.weight)
    for name in ("norm0", "relu0", "pool0"):  # what is of ImageNet's larger images only
        delattr(network.features, name)
    return plain_unless_colored(network, input_shape)
