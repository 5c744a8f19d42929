"""The shallow networks C1 and C3 of the large-batch study: two convolutions, two hidden layers.

Keskar, Mudigere, Nocedal, Smelyanskiy, Tang, "On Large-Batch Training for Deep Learning:
Generalization Gap and Sharp Minima", ICLR 2017, https://arxiv.org/abs/1609.04836
Layers and recipe as in Hoffer, Hubara, Soudry, "Train longer, generalize better", NeurIPS 2017,
https://arxiv.org/abs/1705.08741
Differs from them: the rate begins at 0.01, not at 0.001, which they raise at epoch 60.
"""

from torch import nn

from ._vision import PadCropFlip, cifar, plain_unless_colored

# For a batch of 128.
regime = {
    0: {"optimizer": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    120: {"lr": 0.001},
    180: {"lr": 0.0001},
}
epochs = 200
input_transform = {"train": PadCropFlip(padding=4, then=cifar), "eval": cifar}


def cifar_shallow(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (3, 32, 32),
    width: int = 64,
    hidden: tuple[int, int] = (384, 192),
    dropout: float = 0.5,
) -> nn.Module:
    """Return the network: `width` channels of each convolution, `hidden` units of two layers.

    Raises `ValueError` for an input that is no image of at least 7 x 7 pixels.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 7:
        raise ValueError(f"cifar_shallow takes images of at least 7 x 7 pixels, not {input_shape}")
    height, width_left = (_pooled(_pooled(pixels)) for pixels in input_shape[1:])
    network = nn.Sequential(
        *_convolved(input_shape[0], width),
        *_convolved(width, width),
        nn.Flatten(),
        *_hidden(width * height * width_left, hidden[0], dropout),
        *_hidden(hidden[0], hidden[1], dropout),
        nn.Linear(hidden[1], num_classes),
    )
    return plain_unless_colored(network, input_shape)


def _convolved(before: int, after: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, 5, padding=2, bias=False)
    return [convolution, nn.MaxPool2d(3, 2), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]


def _hidden(before: int, after: int, dropout: float) -> list[nn.Module]:
    linear = nn.Linear(before, after, bias=False)
    return [linear, nn.BatchNorm1d(after), nn.ReLU(inplace=True), nn.Dropout(dropout)]


def _pooled(pixels: int) -> int:
    return (pixels - 3) // 2 + 1
