"""The nine-layer residual network of the fastest CIFAR-10 trainings, with its one-cycle recipe.

Page, "How to Train Your ResNet", 2018, https://myrtle.ai/learn/how-to-train-your-resnet/, an entry
of DAWNBench; used by Dutta et al., "On the Discrepancy between the Theoretical Analysis and
Practical Implementations of Compressed Communication", AAAI 2020, https://arxiv.org/abs/1911.08250
Differs from it: images are padded with zeros, not by reflection.
"""

from torch import Tensor, nn

from ._vision import PadCropFlip, cifar, plain_unless_colored

# For a batch of 512.
regime = "onecycle_resnet9"
epochs = 24
batch = 512
input_transform = {"train": PadCropFlip(padding=4, then=cifar, hole=8), "eval": cifar}


def resnet9(
    num_classes: int = 10, input_shape: tuple[int, ...] = (3, 32, 32), width: int = 64
) -> nn.Module:
    """Return the network, the first convolution of `width` channels."""
    return plain_unless_colored(ResNet9(num_classes, input_shape[0], width), input_shape)


class ResNet9(nn.Module):
    """A convolution, three stages that halve the image, the maximum over pixels, a classifier.

    The first and the third stage end with a residual pair of convolutions. Scores are divided by 8.
    """

    def __init__(self, num_classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.first = _normalized(channels, width)
        self.blocks = nn.Sequential(
            _normalized(width, 2 * width),
            nn.MaxPool2d(2),
            Residual(2 * width),
            _normalized(2 * width, 4 * width),
            nn.MaxPool2d(2),
            _normalized(4 * width, 8 * width),
            nn.MaxPool2d(2),
            Residual(8 * width),
        )
        self.classifier = nn.Linear(8 * width, num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = self.blocks(self.first(images)).amax(dim=(2, 3))
        scores: Tensor = self.classifier(out) * 0.125
        return scores


class Residual(nn.Module):
    """x + F(x), F two convolutions that both end with a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _normalized(channels, channels)
        self.second = _normalized(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, of the shape of x [B, C, H, W]."""
        out: Tensor = x + self.second(self.first(x))
        return out


def _normalized(before: int, after: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True))
