"""Residual networks: for CIFAR of depth 6n + 2, for ImageNet of depth 18, 34, 50, 101 or 152.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4,
https://arxiv.org/abs/1512.03385
Differs from the paper: the mean of each channel is subtracted, not of each pixel. Those for
ImageNet are torchvision's, which stride in a block's 3 x 3 convolution.
"""

from torch import Tensor, nn
from torch.nn import functional

from ._imagenet import is_large, of_torchvision
from ._residual import Block, ZeroPad, convolution, drawn_as_he
from ._vision import MOST_LAYERS, PadCropFlip, cifar, plain_unless_colored

__all__ = ["Block", "ResNet", "ZeroPad", "resnet"]

# For a batch of 128: 164 epochs are the paper's 64,000 steps, the rate drops at 32,000 and 48,000.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
    81: {"lr": 0.01},
    122: {"lr": 0.001},
}
epochs = 164
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}


_IMAGENET = (18, 34, 50, 101, 152)


def resnet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    depth: int | None = None,
    width: int = 1,
    shortcut: str = "A",
    form: str = "auto",
) -> nn.Module:
    """Return a network of `depth` layers, by default 20, the first stage of 16 * `width` channels.

    `shortcut` between stages: "A" pads the new channels with zeros, as the paper does for CIFAR,
    "B" projects by a 1 x 1 convolution. Images that are not of three channels get no crop or flip.
    `form` is "cifar", "imagenet", or "auto": images above 96 pixels get torchvision's network for
    ImageNet, by default of 50 layers, which takes no other width or shortcut.
    Raises `ValueError` for a depth, a width, a shortcut or a form that does not exist.
    """
    if is_large(input_shape, form):
        return _of_imagenet(num_classes, input_shape, depth, (width, shortcut))
    depth = 20 if depth is None else depth
    if not isinstance(depth, int) or not 8 <= depth <= MOST_LAYERS or depth % 6 != 2:
        fix = "; 18, 34, 50, 101 and 152 are those of form=imagenet" if depth in _IMAGENET else ""
        rule = f"depth must be 6n + 2 (8, 14, 20, 32, 44, 56, 110), at most {MOST_LAYERS:,}"
        raise ValueError(f"{rule}, not {depth}{fix}")
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be a whole number of at least 1, not {width}")
    if shortcut not in ("A", "B"):
        raise ValueError(f"shortcut must be A (zero padding) or B (projection), not {shortcut}")
    network = ResNet(num_classes, input_shape[0], (depth - 2) // 6, 16 * width, shortcut)
    return plain_unless_colored(network, input_shape)


class ResNet(nn.Module):
    """A convolution, three stages of `blocks` residual blocks, the mean over pixels, a classifier.

    Each stage after the first halves the image and doubles the channels.
    """

    def __init__(
        self, num_classes: int, channels: int, blocks: int, width: int, shortcut: str
    ) -> None:
        super().__init__()
        self.first = convolution(channels, width)
        self.norm = nn.BatchNorm2d(width)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.Sequential()
        for before, after, stride in stages:
            self.blocks.append(Block(before, after, stride, shortcut))
            self.blocks.extend(Block(after, after, 1, shortcut) for _ in range(blocks - 1))
        self.classifier = nn.Linear(4 * width, num_classes)
        self.apply(drawn_as_he)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = functional.relu(self.norm(self.first(images)))
        out = self.blocks(out).mean(dim=(2, 3))
        scores: Tensor = self.classifier(out)
        return scores


def _of_imagenet(
    num_classes: int, input_shape: tuple[int, ...], depth: int | None, other: tuple[int, str]
) -> nn.Module:
    depth = 50 if depth is None else depth
    if depth not in _IMAGENET:
        raise ValueError(f"depth must be one of {', '.join(map(str, _IMAGENET))}, not {depth}")
    if other != (1, "A"):
        raise ValueError("width and shortcut are settings of the CIFAR form")
    return of_torchvision(f"resnet{depth}", num_classes, input_shape)
