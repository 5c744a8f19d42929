"""ECD-PSGD: gossip of compressed extrapolations.

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
from .gossip import Gossip


@register("algorithm", "ecd")
@dataclass(frozen=True)
class ECD(Gossip):
    """ECD-PSGD: each worker sends an extrapolation of its model, which neighbors average.

    In step t = 1, 2 ...: x_new = sum_j w_ij xhat_j - lr d; z = (1 - t/2) x + (t/2) x_new;
    xhat = (1 - 2/t) xhat + (2/t) C(z), on every coordinate. Replicas start at the first model. The
    theory asks for an unbiased compressor; with few entries sent it diverges.
    Tang, Gan, Zhang, Zhang, Liu, "Communication Compression for Decentralized Training", NeurIPS
    2018, https://arxiv.org/abs/1803.06443.
    """

    takes_groups = True
    only_unbiased = "Tang et al., NeurIPS 2018"

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the last models, the replicas and the replicas' weighted sums, [L, n]."""
        return {"before": x.clone(), "replica": x.clone(), "sum": x.clone()}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the extrapolation, and bring the replicas up to it."""
        t = context.step.number + 1
        x.sub_(state["before"]).add_(state["sum"])  # x_new
        extrapolation = torch.add(state["before"] * (1 - t / 2), x, alpha=t / 2)  # z
        message = context.compress(extrapolation)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["replica"].mul_(1 - 2 / t).add_(sent.to_dense(), alpha=2 / t)
        state["sum"].mul_(1 - 2 / t).add_(mixed, alpha=2 / t)
        state["before"].copy_(x)
        return Exchanged.of(extrapolation, sent)
