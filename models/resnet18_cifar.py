"""ResNet-18 for CIFAR: a 3 x 3 stem, four stages of two blocks, 64 to 512 channels wide.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385
Differs from the paper: the stem neither strides nor pools, as images are small. In this form it is
the network of Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, 11,173,962 parameters at 10
classes.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from ._residual import Block, convolution
from ._vision import PadCropFlip, cifar, plain_unless_colored

# For a batch of 128 and the epochs of PowerSGD's setting; for B = W * 128 its authors take W times
# the rate, which they reach over five epochs.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": False},
    150: {"lr": 0.01},
    250: {"lr": 0.001},
}
epochs = 300
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}


def resnet18_cifar(
    num_classes: int = 10, input_shape: tuple[int, ...] = (3, 32, 32), width: int = 64
) -> nn.Module:
    """Return the network, the first stage of `width` channels.

    Images that are not of three channels get no crop or flip.
    """
    return plain_unless_colored(ResNet18(num_classes, input_shape[0], width), input_shape)


class ResNet18(nn.Module):
    """A convolution, four stages of two residual blocks, the mean over pixels, a classifier.

    Each stage after the first halves the image and doubles the channels.
    """

    def __init__(self, num_classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.first = convolution(channels, width)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential()
        widths = (width, 2 * width, 4 * width, 8 * width)  # channels of the stages
        for before, after in pairwise((width, *widths)):
            self.blocks.append(Block(before, after, 1 if before == after else 2, "B"))
            self.blocks.append(Block(after, after, 1, "B"))
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = functional.relu(self.norm(self.first(images)))
        out = self.blocks(out).mean(dim=(2, 3))
        scores: Tensor = self.classifier(out)
        return scores
