"""SGD with momentum, outside: with Nesterov's, or the heavy ball's.

Letters: n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import State
from ...registry import register
from .contract import OuterOptimizer


@register("outer_optimizer", "nesterov")
@dataclass(frozen=True)
class Nesterov(OuterOptimizer):
    """SGD with Nesterov momentum: v = m v + g, a = a - lr (g + m v)."""

    def init(self, anchor: Tensor) -> State:
        """Return the momentum, zeros [1, n]."""
        return {"velocity": torch.zeros_like(anchor)}

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step of SGD with Nesterov momentum."""
        assert self.lr is not None
        assert self.momentum is not None
        state["velocity"].mul_(self.momentum).add_(gradient)
        anchor.sub_(state["velocity"] * self.momentum + gradient, alpha=self.lr)


@register("outer_optimizer", "sgd")
@dataclass(frozen=True)
class HeavyBall(Nesterov):
    """SGD with momentum: v = m v + g, a = a - lr v."""

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step of SGD with momentum."""
        assert self.lr is not None
        assert self.momentum is not None
        state["velocity"].mul_(self.momentum).add_(gradient)
        anchor.sub_(state["velocity"], alpha=self.lr)
