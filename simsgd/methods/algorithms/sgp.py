"""SGP: gossip along links that go one way, by push-sum.

Letters: W workers, L hosted here, n elements of one segment, z their parameters [L, n], x and w
what push-sum adds up, a_ij what worker j sends of both to i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Dense, State
from ...communication.segments import Segment
from ...registry import register
from .contract import ExchangeContext, Exchanged
from .gossip import Gossip


@register("algorithm", "sgp")
@dataclass(frozen=True)
class SGP(Gossip):
    """Stochastic gradient push: each sends shares of its sum and of its weight, and divides them.

    x_i = x_i - lr d_i, d_i at z_i; x_i = a_ii x_i + sum_j a_ij C(x_j); w_i = sum_j a_ij w_j;
    z_i = x_i / w_i. Each divides what it has among itself and those whom it sends to, so that
    columns of a add up to 1, rows need not, and links may go one way; the weights, 1 at first, add
    up to W at every step. On graphs whose rows add up to 1 too, as `one-peer`, they stay 1. A lossy
    compressor is the naive form: its error stays.
    Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", ICML
    2019, https://arxiv.org/abs/1811.10792.

    Differs from the paper: a weight goes along with each tensor, one value more. Nothing overlaps:
    what is sent arrives in the same step.
    """

    topology: str = "one-peer"  # who sends to whom
    neighbors_may_vary = True
    one_way = True

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the sums [L, n], and the weights, [L, 1]."""
        return {"sum": x.clone(), "weight": torch.ones_like(x[:, :1])}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Add the step to the sums, push shares of them, and divide by the weights."""
        total, weight, mixing = state["sum"], state["weight"], self.mixing(context)
        total.add_(x - total / weight)
        pushed = total.clone()
        channel, segment = context.channel, context.segment
        own = mixing.own[channel.hosted].to(x).unsqueeze(1)  # [L, 1]
        sent, received = channel.neighbor_mean(context.compress(pushed), segment, mixing)
        total.sub_(sent.to_dense()).mul_(own).add_(received)
        weights, arrived = channel.neighbor_mean(Dense.of(weight.clone()), segment, mixing)
        weight.sub_(weights.to_dense()).mul_(own).add_(arrived)
        x.copy_(total / weight)
        return Exchanged.of(pushed, sent)
