"""Send the entries whose gradients agree over samples.

Letters: L workers hosted here, b samples each, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Sparse, State
from ...registry import register
from ...settings import require
from .contract import Compressor, StepInfo


@register("compressor", "variance")
@dataclass(frozen=True)
class Variance(Compressor):
    """Each worker sends the entries whose gradients, gathered so far, agree over its samples.

    r += mean over samples z of g_z, v += sum over samples of (g_z / b)^2. Where r^2 > alpha v, r
    is sent and both begin again at 0; elsewhere v *= zeta. It keeps what it does not send itself:
    use memory none. Nothing to tune for a ratio: how many entries go follows the gradients.
    Needs the gradient of every sample, see `sample_squares`: b times the work in backward, and a
    model without BatchNorm.
    Tsuzuku, Imachi, Akiba, "Variance-based Gradient Compression for Efficient Distributed Deep
    Learning", ICLR 2018 workshop, https://arxiv.org/abs/1802.06058, algorithm 1.

    Differs from the paper: values and places are coded as for every sparse message, not in 4 and
    28 bits. What float16 or bfloat16 values lose in rounding is not kept.
    """

    alpha: float = 1.5  # how many variances r^2 must exceed, greater than 0; the paper: 1 to 2
    zeta: float = 0.999  # what is left of v after each step, in (0, 1]
    biased = True
    needs_squares = True
    has_own_memory = True

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "alpha", self.alpha, "must be greater than 0")
        require(0 < self.zeta <= 1, "zeta", self.zeta, "must lie in (0, 1]")

    def init(self, like: Tensor) -> State:
        """Return r and v: zeros, [L, n]."""
        return {"residual": torch.zeros_like(like), "variance": torch.zeros_like(like)}

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return r where it is certain; `x` [L, n] is the gradient."""
        assert step.squares is not None
        r, v = state["residual"], state["variance"].add_(step.squares)
        if compiled_loops.takes(r, v, x):
            from .bar_kernels import certain_

            return Sparse.taken_where_(certain_(r, v, x, self.alpha, self.zeta), r)
        r.add_(x)
        certain = r.abs() > (self.alpha * v).sqrt()  # r^2 > alpha v, where r^2 would underflow too
        v.mul_(self.zeta).masked_fill_(certain, 0)
        return Sparse.taken_where_(certain, r)
