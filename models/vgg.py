"""VGG with BatchNorm, of 11, 13, 16 or 19 layers: for CIFAR with one linear layer, or for ImageNet.

Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
ICLR 2015, https://arxiv.org/abs/1409.1556
Differs from the paper: BatchNorm; for CIFAR one linear layer in place of three. The ImageNet form
is torchvision's.
"""

from torch import Tensor, nn

from ._imagenet import is_large, of_torchvision
from ._vision import PadCropFlip, cifar, plain_unless_colored

# For a batch of 128.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    60: {"lr": 0.02},
    120: {"lr": 0.004},
    160: {"lr": 0.0008},
}
epochs = 200
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}

_OF_IMAGENET = {
    0: {"optimizer": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
    30: {"lr": 0.001},
    60: {"lr": 0.0001},
}
_STAGES = {  # convolutions of each stage, by depth
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_WIDTHS = (1, 2, 4, 8, 8)  # channels of each stage, as multiples of the first


def vgg(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    depth: int = 16,
    width: int = 64,
    form: str = "auto",
) -> nn.Module:
    """Return a network of `depth` layers, `width` channels in the first stage.

    `form` is "cifar", "imagenet", or "auto": images above 96 pixels get torchvision's network,
    which takes no other width. Raises `ValueError` for a depth or a form that does not exist.
    """
    if depth not in _STAGES:
        raise ValueError(f"depth must be one of {', '.join(map(str, _STAGES))}, not {depth}")
    if is_large(input_shape, form):
        return of_torchvision(f"vgg{depth}_bn", num_classes, input_shape, _OF_IMAGENET)
    network = Vgg(num_classes, input_shape[0], _STAGES[depth], width)
    return plain_unless_colored(network, input_shape)


class Vgg(nn.Module):
    """Stages of 3 x 3 convolutions, each halving the image, the mean over pixels, a classifier."""

    def __init__(
        self, num_classes: int, channels: int, stages: tuple[int, ...], width: int
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for convolutions, times in zip(stages, _WIDTHS, strict=True):
            for _ in range(convolutions):
                convolution = nn.Conv2d(channels, times * width, 3, padding=1)
                self.features.append(convolution)
                self.features.append(nn.BatchNorm2d(times * width))
                self.features.append(nn.ReLU(inplace=True))
                channels = times * width
            self.features.append(nn.MaxPool2d(2, ceil_mode=True))
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        scores: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return scores
