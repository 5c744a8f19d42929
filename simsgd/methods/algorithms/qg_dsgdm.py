"""QG-DSGDm: gossip whose momentum is what models moved by, neighbors included.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, C the compressor, m a momentum of each worker.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import State
from ...communication.segments import Segment
from ...registry import register
from ...settings import require
from .contract import ExchangeContext, Exchanged
from .dpsgd import DPSGD


@register("algorithm", "qg_dsgdm")
@dataclass(frozen=True)
class QGDSGDm(DPSGD):
    """D-PSGD with quasi-global momentum, of the difference of a worker's models before and after.

    x_half = x - lr (g + beta m); x' = sum_j w_ij C(x_half_j); m = mu m + (1 - mu) (x - x') / lr.
    So m follows what all move by, where a local momentum follows a worker's own samples: for data
    that differ between workers. Nothing more is sent than with dpsgd. The worker's optimizer steps
    along g + beta m: SGD without a momentum of its own is the paper's. With beta = 0 it is dpsgd.
    Lin, Karimireddy, Stich, Jaggi, "Quasi-Global Momentum: Accelerating Decentralized Deep Learning
    on Heterogeneous Data", ICML 2021, https://arxiv.org/abs/2102.04761.

    Differs from the paper: where lr is 0 the momentum only decays. QG-DAdam is not here.
    """

    beta: float = 0.9  # weight of the momentum in a step, in [0, 1)
    mu: float = 0.9  # share of the momentum that stays, in [0, 1)
    nesterov: bool = False  # step along g + beta (g + beta m): QG-DSGDm-N

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "beta", self.beta, "must lie in [0, 1)")
        require(0 <= self.mu < 1, "mu", self.mu, "must lie in [0, 1)")

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the momenta, zeros, and the models before the step, [L, n] each."""
        return {"momentum": torch.zeros_like(x), "before": x.clone()}

    def local_gradient(
        self, gradient: Tensor, x: Tensor, state: State, trains: Tensor | None
    ) -> Tensor:
        """Return g + beta m, [L, n], or with Nesterov's g + beta (g + beta m)."""
        moved = gradient.add(state["momentum"], alpha=self.beta)
        return gradient.add(moved, alpha=self.beta) if self.nesterov else moved

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Mix the models, and let the momentum follow what each moved by."""
        exchanged = super().parameters(x, context, state)
        lr = context.lr
        lr = torch.where(lr > 0, lr, math.inf) if isinstance(lr, Tensor) else lr or math.inf
        moved = state["before"].sub_(x).div_(lr)
        state["momentum"].mul_(self.mu).add_(moved, alpha=1 - self.mu)
        state["before"].copy_(x)
        return exchanged
