"""ResNet-18 for CIFAR: a 3 x 3 stem, four stages of two blocks, 64 to 512 channels wide.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385
Differs from the paper: the stem neither strides nor pools, as images are small. In this form it is
the network of Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, 11,173,962 parameters at 10
classes.
"""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from ._vision import PadCropFlip, cifar, digits

# For a batch of 128 and the epochs of PowerSGD's setting; for B = W * 128 its authors take W times
# the rate, which they reach over five epochs.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": False},
    150: {"lr": 0.01},
    250: {"lr": 0.001},
}
epochs = 300
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}

_WIDTHS = (64, 128, 256, 512)  # channels of the stages


def resnet18_cifar(num_classes: int = 10, input_shape: tuple[int, ...] = (3, 32, 32)) -> "ResNet18":
    """Return the network. Images that are not of three channels get no crop or flip."""
    network = ResNet18(num_classes, input_shape[0])
    if input_shape[0] != 3:
        network.input_transform = {"train": digits, "eval": digits}
    return network


class ResNet18(nn.Module):
    """A convolution, four stages of two residual blocks, the mean over pixels, a classifier.

    Each stage after the first halves the image and doubles the channels.
    """

    input_transform: dict[str, Callable[..., Tensor]]

    def __init__(self, num_classes: int, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, _WIDTHS[0])
        self.norm = nn.BatchNorm2d(_WIDTHS[0])
        self.blocks = nn.Sequential()
        for before, after in pairwise((_WIDTHS[0], *_WIDTHS)):
            self.blocks.append(Block(before, after, stride=1 if before == after else 2))
            self.blocks.append(Block(after, after, stride=1))
        self.classifier = nn.Linear(_WIDTHS[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = functional.relu(self.norm(self.first(images)))
        out = self.blocks(out).mean(dim=(2, 3))
        scores: Tensor = self.classifier(out)
        return scores


class Block(nn.Module):
    """Two normalised 3 x 3 convolutions F added to their input: y = relu(F(x) + shortcut(x)).

    Where the shape changes the shortcut is a normalised 1 x 1 convolution.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = _convolution(after, after)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            projection = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output [B, after, H / stride, W / stride]."""
        out = functional.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return functional.relu(out + self.shortcut(x))


def _convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
