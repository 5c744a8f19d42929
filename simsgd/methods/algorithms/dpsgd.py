"""D-PSGD: gossip of whole models.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, C the compressor, d the local optimizer's direction.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import State
from ...registry import register
from .contract import ExchangeContext, Exchanged
from .gossip import Gossip


@register("algorithm", "dpsgd")
@dataclass(frozen=True)
class DPSGD(Gossip):
    """Each worker steps, and then takes the weighted mean of its neighbors' models and its own.

    x_i = w_ii x_i + sum_j w_ij C(x_j), where x is after the local step; without compression this
    is x_i = sum_j w_ij (x_j - lr d_j). A lossy compressor is the naive form: its error stays.
    Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can Decentralized Algorithms Outperform Centralized
    Algorithms?", NeurIPS 2017, https://arxiv.org/abs/1705.09056.
    """

    takes_groups = True
    neighbors_may_vary = True

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Mix the models."""
        mixing = self.mixing(context)
        model = x.clone()
        sent, mixed = context.channel.neighbor_mean(
            context.compress(model), context.segment, mixing
        )
        kept = mixing.own[context.channel.hosted].to(x).unsqueeze(1)  # [L, 1]
        x.sub_(sent.to_dense()).mul_(kept).add_(mixed)
        return Exchanged.of(model, sent)
