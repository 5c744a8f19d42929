"""Residual networks for CIFAR: three stages of two-convolution blocks, depth 6n + 2.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2,
https://arxiv.org/abs/1512.03385
Differs from the paper: the mean of each channel is subtracted, not of each pixel.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from ._vision import PadCropFlip, cifar, digits

# For a batch of 128: 164 epochs are the paper's 64,000 steps, the rate drops at 32,000 and 48,000.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
    81: {"lr": 0.01},
    122: {"lr": 0.001},
}
epochs = 164
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}


def resnet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    depth: int = 20,
    width: int = 1,
    shortcut: str = "A",
) -> nn.Module:
    """Return a network of `depth` layers, the first stage of 16 * `width` channels.

    `shortcut` between stages: "A" pads the new channels with zeros, as the paper does for CIFAR,
    "B" projects by a 1 x 1 convolution. Images that are not of three channels get no crop or flip.
    Raises `ValueError` for a depth, a width or a shortcut that does not exist.
    """
    if not isinstance(depth, int) or depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth must be 6n + 2 (8, 14, 20, 32, 44, 56, 110), not {depth}")
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be a whole number of at least 1, not {width}")
    if shortcut not in ("A", "B"):
        raise ValueError(f"shortcut must be A (zero padding) or B (projection), not {shortcut}")
    network = ResNet(num_classes, input_shape[0], (depth - 2) // 6, 16 * width, shortcut)
    if input_shape[0] != 3:
        network.input_transform = {"train": digits, "eval": digits}
    return network


class ResNet(nn.Module):
    """A convolution, three stages of `blocks` residual blocks, the mean over pixels, a classifier.

    Each stage after the first halves the image and doubles the channels.
    """

    input_transform: dict[str, Callable[..., Tensor]]

    def __init__(
        self, num_classes: int, channels: int, blocks: int, width: int, shortcut: str
    ) -> None:
        super().__init__()
        self.first = _convolution(channels, width)
        self.norm = nn.BatchNorm2d(width)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.Sequential()
        for before, after, stride in stages:
            self.blocks.append(Block(before, after, stride, shortcut))
            self.blocks.extend(Block(after, after, 1, shortcut) for _ in range(blocks - 1))
        self.classifier = nn.Linear(4 * width, num_classes)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = functional.relu(self.norm(self.first(images)))
        out = self.blocks(out).mean(dim=(2, 3))
        scores: Tensor = self.classifier(out)
        return scores


class Block(nn.Module):
    """Two normalised 3 x 3 convolutions F added to their input: y = relu(F(x) + shortcut(x))."""

    def __init__(self, before: int, after: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = _convolution(after, after)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut = _shortcut(before, after, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output [B, after, H / stride, W / stride]."""
        out = functional.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return functional.relu(out + self.shortcut(x))


class ZeroPad(nn.Module):
    """Shortcut A: every `stride`-th pixel, and `extra` channels of zeros."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, C, H, W] as [B, C + extra, H / stride, W / stride]."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, 0, self.extra))


def _shortcut(before: int, after: int, stride: int, kind: str) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    if kind == "A":
        return ZeroPad(after - before, stride)
    projection = nn.Conv2d(before, after, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(after))


def _convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def _initialise(layer: nn.Module) -> None:
    """Draw weights from a normal distribution of variance 2 / fan-in, as He et al., ICCV 2015."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.bias)
