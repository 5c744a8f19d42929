"""A multilayer perceptron: the pixels in a row, hidden layers of ReLU units, one output a class."""

from itertools import pairwise
from math import prod

from torch import nn

from ._vision import PadCrop, digits, of_any_shape

# For a global batch of 128; the last quarter of the epochs at a tenth of the rate.
regime = {
    0: {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
    19: {"lr": 0.005},
}
epochs = 25
input_transform = {"train": PadCrop(padding=1, then=digits), "eval": digits}


def mlp(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (1, 28, 28),
    hidden: int | tuple[int, ...] = 256,
) -> nn.Module:
    """Return the network; `hidden` is the number of units of each hidden layer, in order,
    () for none.

    Raises `ValueError` for a layer without units.
    """
    widths = hidden if isinstance(hidden, tuple) else (hidden,)
    if not all(type(width) is int and width >= 1 for width in widths):
        raise ValueError(
            f"hidden must be numbers of units, such as 256 or (256, 128), not {hidden}"
        )
    layers: list[nn.Module] = [nn.Flatten()]
    units = (prod(input_shape), *widths)
    for before, after in pairwise(units):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(units[-1], num_classes))
    return of_any_shape(network, input_shape)
