"""What a worker wants to say: its gradient and what it could not say before.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .messages import Message, State
from .registry import register
from .settings import require


class Memory(ABC):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    A memory that declares the field `momentum` owns the momentum: the optimizer then has none.
    """

    @abstractmethod
    def init(self, like: Tensor, dense: bool) -> State:
        """Return the state before the first step for a segment like `like`, [L, n].

        What goes `dense` keeps no residual.
        """

    @abstractmethod
    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return what each worker wants to say, [L, n], given its gradient, [L, n].

        The result may be the state itself: read it, do not write it.
        """

    @abstractmethod
    def keep(self, said: Tensor, message: Message, state: State) -> None:
        """Store what stays behind when `message` was sent for `said` [L, n]."""


@register("memory", "none")
@dataclass(frozen=True)
class NoMemory(Memory):
    """What is not sent is lost."""

    def init(self, like: Tensor, dense: bool) -> State:
        """Return nothing."""
        return {}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the gradient, [L, n]."""
        return grad

    def keep(self, said: Tensor, message: Message, state: State) -> None:
        """Keep nothing."""


@register("memory", "residual")
@dataclass(frozen=True)
class Residual(Memory):
    """What is not sent is added to the next gradient: said = e + g, e = said - sent.

    Rounding and quantisation errors stay behind as well, so that what was sent and what is kept
    always add up to what came in.
    Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
    Feedback Fixes SignSGD", ICML 2019, https://arxiv.org/abs/1901.09847.
    """

    def init(self, like: Tensor, dense: bool) -> State:
        """Return a residual of zeros, [L, n]."""
        return {} if dense else {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return residual + gradient, [L, n]."""
        return state["residual"].add_(grad) if "residual" in state else grad

    def keep(self, said: Tensor, message: Message, state: State) -> None:
        """Subtract what was sent from the residual."""
        if "residual" in state:
            message.subtract_from_(state["residual"])


@register("memory", "dgc")
@dataclass(frozen=True)
class DGC(Memory):
    """Momentum before compression, and momentum factor masking.

    u = m u + g, v = v + u (Nesterov: u = m (u + g), v = v + u + g); v is what a worker wants to
    say; where it was sent, both u and v are zeroed.
    Lin et al., "Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887.

    Differs from the paper: v keeps the rounding error of float16 values. What goes dense gets the
    momentum and neither accumulation nor masking, so that it equals momentum SGD; the same holds
    for a step at which nothing is pruned, so that compression may begin late without a jump.
    """

    momentum: float | None = None  # m in [0, 1); None: the regime's
    nesterov: bool | None = None  # Nesterov's form; None: the regime's
    masking: bool = True  # zero u where v was sent

    def __post_init__(self) -> None:
        require(
            self.momentum is None or 0 <= self.momentum < 1,
            "momentum",
            self.momentum,
            "must lie in [0, 1)",
        )

    def init(self, like: Tensor, dense: bool) -> State:
        """Return u, and v unless `dense`: zeros, [L, n]."""
        momentum = {"momentum": torch.zeros_like(like)}
        return momentum if dense else momentum | {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return v, [L, n]; for what goes dense, the momentum."""
        u, m = state["momentum"], self.momentum or 0.0
        if self.nesterov:
            new = u.add_(grad).mul_(m) + grad
        else:
            new = u.mul_(m).add_(grad)
        return state["residual"].add_(new) if "residual" in state else new

    def keep(self, said: Tensor, message: Message, state: State) -> None:
        """Take what was sent out of v, and zero u there."""
        if "residual" in state:
            message.subtract_from_(state["residual"])
        if "residual" in state and self.masking:
            message.clear_(state["momentum"])
