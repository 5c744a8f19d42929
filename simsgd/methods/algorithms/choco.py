"""CHOCO-SGD: gossip of compressed changes to public copies of the models.

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


@register("algorithm", "choco")
@dataclass(frozen=True)
class Choco(Gossip):
    """CHOCO-SGD: each worker sends the compressed change to a public copy of its model.

    x = x - lr d; x += gamma (s - xhat); q = C(x - xhat); xhat += q; s += sum_j w_ij q_j. Public
    copies xhat and their weighted sums s start at 0, so that the first step has no gossip. The
    mean of all models is not changed by gossip, whatever is lost in C; gamma must be smaller the
    more is lost.
    Koloskova, Stich, Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
    Compressed Communication", ICML 2019, https://arxiv.org/abs/1902.00340; Koloskova, Lin, Stich,
    Jaggi, "Decentralized Deep Learning with Arbitrary Communication Compression", ICLR 2020,
    https://arxiv.org/abs/1907.09356.
    """

    takes_groups = True

    consensus_stepsize: float = 0.5  # gamma in (0, 1]

    def __post_init__(self) -> None:
        _check_stepsize(self.consensus_stepsize)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the public copies and their weighted sums: zeros, [L, n]."""
        return {"public": torch.zeros_like(x), "sum": torch.zeros_like(x)}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Gossip by what was known before, and send the change."""
        x.add_(state["sum"] - state["public"], alpha=self.consensus_stepsize)
        difference = x - state["public"]
        message = context.compress(difference)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["public"].add_(sent.to_dense())
        state["sum"].add_(mixed)
        return Exchanged.of(difference, sent)
