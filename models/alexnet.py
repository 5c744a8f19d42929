"""AlexNet: torchvision's for ImageNet, and one of five 3 x 3 convolutions for CIFAR.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
https://arxiv.org/abs/1404.5997
The CIFAR form keeps its channels and its two hidden layers of 4,096 units; it has no paper.
"""

from math import ceil

from torch import nn

from ._imagenet import is_large, of_torchvision
from ._vision import PadCropFlip, cifar, plain_unless_colored, require_images

# For a batch of 128. Without BatchNorm the rate has to be small.
regime = {
    0: {"optimizer": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    80: {"lr": 0.001},
    120: {"lr": 0.0001},
}
epochs = 160
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}

_OF_IMAGENET = {
    0: {"optimizer": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    30: {"lr": 0.001},
    60: {"lr": 0.0001},
}
_CHANNELS = (64, 192, 384, 256, 256)
_POOLED = (0, 1, 4)  # the convolutions that a max pooling follows


def alexnet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    width: int = 64,
    hidden: int = 4096,
    dropout: float = 0.5,
    batch_norm: bool = False,
    form: str = "auto",
) -> nn.Module:
    """Return the network: `width` channels of the first convolution, two layers of `hidden` units.

    `form` is "cifar", "imagenet", or "auto": images above 96 pixels get torchvision's network,
    whose settings are fixed. Raises `ValueError` for a form that does not exist.
    """
    if is_large(input_shape, form):
        return of_torchvision("alexnet", num_classes, input_shape, _OF_IMAGENET)
    layers: list[nn.Module] = []
    require_images(input_shape)
    before = input_shape[0]
    for place, channels in enumerate(_CHANNELS):
        after = max(1, channels * width // 64)
        layers.append(nn.Conv2d(before, after, 3, 1 if place else 2, padding=1))
        layers += [nn.BatchNorm2d(after)] if batch_norm else []
        layers += [nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if place in _POOLED else []
        before = after
    height, across = (ceil(pixels / 16) for pixels in input_shape[1:])
    layers += [
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(before * height * across, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, num_classes),
    ]
    return plain_unless_colored(nn.Sequential(*layers), input_shape)
