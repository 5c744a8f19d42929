"""The fully connected network F1 of the large-batch study: hidden layers of 512, with BatchNorm.

Keskar, Mudigere, Nocedal, Smelyanskiy, Tang, "On Large-Batch Training for Deep Learning:
Generalization Gap and Sharp Minima", ICLR 2017, https://arxiv.org/abs/1609.04836
Five hidden layers, as in Hoffer, Hubara, Soudry, "Train longer, generalize better", NeurIPS 2017,
https://arxiv.org/abs/1705.08741, whose recipe this is.
"""

from itertools import pairwise
from math import prod

from torch import nn

from ._vision import digits, of_any_shape

# For a batch of 128.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
    10: {"lr": 0.01},
    20: {"lr": 0.001},
    30: {"lr": 0.0001},
}
epochs = 40
input_transform = {"train": digits, "eval": digits}


def mnist_f1(
    num_classes: int = 10,
    input_shape: tuple[int, ...] = (1, 28, 28),
    hidden: int = 512,
    depth: int = 5,
) -> nn.Module:
    """Return the network of `depth` hidden layers of `hidden` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((prod(input_shape), *[hidden] * depth)):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    return of_any_shape(nn.Sequential(*layers, nn.Linear(hidden, num_classes)), input_shape)
