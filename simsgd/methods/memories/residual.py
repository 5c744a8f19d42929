"""Add what was not sent to the next gradient.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...registry import register
from ...settings import require
from .contract import Memory


@register("memory", "residual")
@dataclass(frozen=True)
class Residual(Memory):
    """What is not sent is added to the next gradient.

    compensated = beta e + gamma g, and e = compensated - sent, where e begins at zero.

    Rounding and quantization errors stay behind as well, so that (beta = gamma = 1) what was sent
    and what is kept always add up to what came in.
    Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
    Feedback Fixes SignSGD", ICML 2019, https://arxiv.org/abs/1901.09847.

    `lr=true` is Algorithm 1 of the latter: the memory collects lr g, and the parameters move by the
    mean of all messages as it is. With a constant lr this is the same. When lr falls to a tenth,
    what was kept at the old lr moves the parameters as far as it would have, ten times further than
    without `lr=true`, which gives it the new lr.
    """

    elementwise = True

    beta: float = 1.0  # weight of the residual
    gamma: float = 1.0  # weight of the gradient
    lr: bool = False  # keep lr times the gradient; the optimizer's lr is then 1

    def __post_init__(self) -> None:
        for name in ("beta", "gamma"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, value, "must be a number of at least 0")

    @property
    def keeps_lr(self) -> bool:
        """Whether `lr` is set."""
        return self.lr

    def with_lr(self) -> "Residual":
        """Return the memory with `lr=true`."""
        return replace(self, lr=True)

    def at_rate(self, lr: float) -> "Residual":
        """Return the memory while the learning rate is `lr`: with `lr=true`, gamma times it."""
        return replace(self, gamma=self.gamma * lr, lr=False) if self.lr else self

    def init(self, like: Tensor, dense: bool) -> State:
        """Return a residual of zeros, [L, n]."""
        return {} if dense else {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return beta * residual + gamma * gradient, [L, n]."""
        assert not self.lr, "at_rate makes it known"
        if "residual" in state:
            aged = state["residual"] if self.beta == 1 else state["residual"].mul_(self.beta)
            return aged.add_(grad, alpha=self.gamma)
        return grad if self.gamma == 1 else grad * self.gamma

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Subtract what was sent from the residual."""
        if "residual" in state:
            message.subtract_from_(state["residual"])
