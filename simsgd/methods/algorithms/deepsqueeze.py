"""DeepSqueeze: gossip of compressed models with error compensation.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, C the compressor, d the local optimizer's direction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import State
from ...communication.segments import Segment
from ...registry import register
from .contract import ExchangeContext, Exchanged
from .gossip import Gossip, _check_stepsize


@register("algorithm", "deepsqueeze")
@dataclass(frozen=True)
class DeepSqueeze(Gossip):
    """DeepSqueeze: each worker sends its model with what was lost before, compressed.

    x -= lr d; e += x; c = C(e); e -= c; x += gamma sum_j (w_ij - [i = j]) c_j.
    Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: Decentralization Meets
    Error-Compensated Compression", 2019, https://arxiv.org/abs/1907.07346.
    """

    takes_groups = True

    consensus_stepsize: float = 0.5  # gamma in (0, 1]

    def __post_init__(self) -> None:
        _check_stepsize(self.consensus_stepsize)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return what was lost: zeros, [L, n]."""
        return {"residual": torch.zeros_like(x)}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the model and the residual, and move towards the neighbors."""
        compensated = state["residual"].add_(x)
        message = context.compress(compensated)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        exchanged = Exchanged.of(compensated, sent, state)
        x.add_(mixed.sub_(sent.to_dense()), alpha=self.consensus_stepsize)
        sent.subtract_from_(state["residual"])
        return exchanged
