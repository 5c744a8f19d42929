"""Wide residual networks for CIFAR: depth 6n + 4, pre-activated, `width` times the channels.

Zagoruyko, Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146
The default, of 16 layers and 4 times the channels, is that of the large-batch study (Hoffer,
Hubara, Soudry, NeurIPS 2017); the paper's best is depth=28, width=10.
"""

from torch import Tensor, nn
from torch.nn import functional

from ._residual import convolution, drawn_as_he
from ._vision import MOST_LAYERS, PadCropFlip, cifar, plain_unless_colored

# For a batch of 128.
regime = {
    0: {
        "optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True,
    },
    60: {"lr": 0.02},
    120: {"lr": 0.004},
    160: {"lr": 0.0008},
}  # fmt: skip
epochs = 200
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}


def wide_resnet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    depth: int = 16,
    width: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a network of `depth` layers, the first stage of 16 * `width` channels.

    `dropout` lies between the two convolutions of a block. Raises `ValueError` for a depth or a
    width that does not exist.
    """
    if not isinstance(depth, int) or not 10 <= depth <= MOST_LAYERS or depth % 6 != 4:
        raise ValueError(
            f"depth must be 6n + 4 (10, 16, 22, 28, 40), at most {MOST_LAYERS:,}, not {depth}"
        )
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be a whole number of at least 1, not {width}")
    network = WideResNet(num_classes, input_shape[0], (depth - 4) // 6, width, dropout)
    return plain_unless_colored(network, input_shape)


class WideResNet(nn.Module):
    """A convolution, three stages of `blocks` wide blocks, the mean over pixels, a classifier."""

    def __init__(
        self, num_classes: int, channels: int, blocks: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.first = convolution(channels, 16)
        self.blocks = nn.Sequential()
        before = 16
        for after, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for place in range(blocks):
                self.blocks.append(WideBlock(before, after, 1 if place else stride, dropout))
                before = after
        self.norm = nn.BatchNorm2d(before)
        self.classifier = nn.Linear(before, num_classes)
        self.apply(drawn_as_he)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of images [B, C, H, W]."""
        out = functional.relu(self.norm(self.blocks(self.first(images))))
        scores: Tensor = self.classifier(out.mean(dim=(2, 3)))
        return scores


class WideBlock(nn.Module):
    """y = F(x) + shortcut(x), each convolution of F after a BatchNorm and a ReLU.

    Where the shape changes the shortcut is a 1 x 1 convolution of the first ReLU's result.
    """

    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(before)
        self.first = convolution(before, after, stride)
        self.second_norm = nn.BatchNorm2d(after)
        self.dropout = nn.Dropout(dropout)
        self.second = convolution(after, after)
        self.projection = (
            None if before == after else nn.Conv2d(before, after, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output [B, after, H / stride, W / stride]."""
        active = functional.relu(self.first_norm(x))
        out = self.dropout(functional.relu(self.second_norm(self.first(active))))
        shortcut = x if self.projection is None else self.projection(active)
        added: Tensor = self.second(out) + shortcut
        return added
