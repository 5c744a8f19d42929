"""A small convolutional network for digits: two convolutions, two linear layers, 65,000 parameters.

LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition",
Proc. IEEE 1998, http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf
Differs from the paper: fewer layers, ReLU and max pooling, full connections, softmax.
"""

from torch import nn

from ._vision import PadCrop, digits

# For a global batch of 128; the last quarter of the epochs at a tenth of the rate.
regime = {
    0: {"optimizer": "SGD", "lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4},
    19: {"lr": 0.003},
}
epochs = 25
input_transform = {"train": PadCrop(padding=1, then=digits), "eval": digits}


def lenet(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (1, 28, 28),
    channels: tuple[int, int] = (8, 16),
    hidden: int = 108,
) -> nn.Module:
    """Return the network; images smaller than 16 x 16 are padded, so that it fits.

    Raises `ValueError` for an input that is no image of at least 4 x 4 pixels.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(f"lenet takes images of at least 4 x 4 pixels, not {input_shape}")
    padding = 0 if min(input_shape[1:]) >= 16 else 2
    first, second = channels
    height, width = ((pixels + 2 * padding - 4) // 2 // 2 for pixels in input_shape[1:])
    return nn.Sequential(
        nn.Conv2d(input_shape[0], first, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * height * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
