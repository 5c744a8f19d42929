"""Accumulate each worker's momentum, and mask it where it was sent.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Message, State
from ...registry import register
from .contract import Memory
from .momentum import check_momentum, move


@register("memory", "dgc")
@dataclass(frozen=True)
class DGC(Memory):
    """Momentum before compression, and momentum factor masking.

    u = m u + g, v = v + u (Nesterov: u = m (u + g), v = v + u + g); v is compressed; where it was
    sent, both u and v are zeroed.
    Lin et al., "Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887.

    Differs from the paper: v keeps the rounding error of float16 values. What goes dense gets the
    momentum and neither accumulation nor masking, so that it equals momentum SGD; the same holds
    for a step at which nothing is pruned, so that compression may begin late without a jump.
    """

    elementwise = True

    momentum: float | None = None  # m in [0, 1); None: the regime's
    nesterov: bool | None = None  # Nesterov's form; None: the regime's
    masking: bool = True  # zero u where v was sent

    def __post_init__(self) -> None:
        check_momentum(self.momentum)

    def init(self, like: Tensor, dense: bool) -> State:
        """Return u, and v unless `dense`: zeros, [L, n]."""
        momentum = {"momentum": torch.zeros_like(like)}
        return momentum if dense else momentum | {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return v, [L, n]; for what goes dense, the momentum."""
        if "residual" in state and compiled_loops.takes(state["residual"], state["momentum"], grad):
            from .dgc_kernels import accumulated_

            u, m = state["momentum"], self.momentum or 0.0
            return accumulated_(state["residual"], u, grad, m, bool(self.nesterov))
        new = move(state["momentum"], grad, self.momentum, self.nesterov)
        return state["residual"].add_(new) if "residual" in state else new

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Take what was sent out of v, and zero u there."""
        if "residual" in state:
            message.subtract_from_(state["residual"])
        if "residual" in state and self.masking:
            message.clear_(state["momentum"])
