"""Noise in place of gradients.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...keyed_random import RandomKey
from ...registry import register
from ...settings import require
from .contract import Attack


@register("attack", "noise")
@dataclass(frozen=True)
class Noise(Attack):
    """The first F workers send normal noise of a standard deviation in place of their gradient.

    Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017.
    """

    attackers: int  # F
    std: float = 1.0

    def __post_init__(self) -> None:
        require(self.std > 0, "std", self.std, "must be above 0")

    def sent(self, own: Tensor, others: Tensor, key: RandomKey) -> Tensor:
        """Return normal numbers [L, n], by the transform of Box and Muller."""
        n = own.shape[1]
        radius = key.fold_in("radius").uniform(n, own.dtype)
        angle = key.fold_in("angle").uniform(n, own.dtype)
        far = (1 - radius).log_().mul_(-2).sqrt_()
        return far.mul_(torch.cos(angle.mul_(2 * math.pi))).mul_(self.std)
