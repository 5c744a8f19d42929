"""DCD-PSGD: gossip of compressed differences.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, C the compressor, d the local optimizer's direction.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import State
from ...communication.segments import Segment
from ...registry import register
from .contract import ExchangeContext, Exchanged
from .gossip import Gossip


@register("algorithm", "dcd")
@dataclass(frozen=True)
class DCD(Gossip):
    """DCD-PSGD: each worker sends the compressed difference to its last model, and follows it.

    x_half = sum_j w_ij xhat_j - lr d; q = C(x_half - x); x = xhat += q. All replicas start at the
    first model, and x is its own replica. The theory asks for an unbiased compressor that loses
    little.
    Tang, Gan, Zhang, Zhang, Liu, "Communication Compression for Decentralized Training", NeurIPS
    2018, https://arxiv.org/abs/1803.06443.
    """

    takes_groups = True
    only_unbiased = "Tang et al., NeurIPS 2018"

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the replicas and their weighted sums, [L, n]; all start at one model."""
        return {"replica": x.clone(), "sum": x.clone()}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the difference, and add it to the replicas."""
        difference = x - state["replica"]  # -lr d
        difference.add_(state["sum"]).sub_(state["replica"])  # x_half - x
        message = context.compress(difference)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["replica"].add_(sent.to_dense())
        state["sum"].add_(mixed)
        x.copy_(state["replica"])
        return Exchanged.of(difference, sent)
