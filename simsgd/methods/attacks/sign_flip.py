"""Gradients that point the other way.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ...keyed_random import RandomKey
from ...registry import register
from .contract import Attack


@register("attack", "sign-flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """The first F workers send -scale times their gradient.

    Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets", AAAI 2019, https://arxiv.org/abs/1811.03761.
    """

    attackers: int  # F
    scale: float = 1.0

    def sent(self, own: Tensor, others: Tensor, key: RandomKey) -> Tensor:
        """Return the gradients [L, n] turned around."""
        return own.mul(-self.scale)
