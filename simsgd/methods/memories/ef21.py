"""Send the change of an estimate of each worker's gradient.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...registry import register
from .contract import Memory


@register("memory", "ef21")
@dataclass(frozen=True)
class EF21(Memory):
    """Each worker keeps an estimate of its gradient and sends what is to be added to it.

    compensated = g - h, h = h + sent; all move along the mean of all workers' h, which everybody
    keeps by adding the mean of all messages. Nothing is added up over steps, so that no residual
    grows. h begins at zero: the first message is the compressed gradient, as in the paper. What
    goes dense is passed on as it is. Use it with a deterministic, biased compressor, as topk.
    Richtarik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021, https://arxiv.org/abs/2106.05203.
    """

    elementwise = True
    needs_mean_of_all = True
    needs_exact_state = True

    def init(self, like: Tensor, dense: bool) -> State:
        """Return h [L, n] and the mean of all h, one row for all workers, [1, n]: zeros."""
        if dense:
            return {}
        return {"estimate": torch.zeros_like(like), "heard": torch.zeros_like(like[:1])}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return gradient - h, [L, n]."""
        return grad - state["estimate"] if "estimate" in state else grad

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Add what was sent to h."""
        if "estimate" in state:
            state["estimate"].add_(message.to_dense())

    def on_aggregate(self, aggregated: Tensor, state: State) -> Tensor:
        """Add the aggregate to the mean of all h, and return a copy of that, [n]."""
        if "heard" not in state:
            return aggregated
        return state["heard"].add_(aggregated)[0].clone()
