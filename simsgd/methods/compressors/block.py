"""Send one stretch of entries after the other.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import SharedSparse, State
from ...registry import register
from ...settings import count, require
from .contract import Compressor, StepInfo


@register("compressor", "block")
@dataclass(frozen=True)
class Block(Compressor):
    """All workers send the same k consecutive entries, the next ones at every step.

    k = max(1, ceil(ratio * n)), counted in decimal; at step t the entries t k, ..., t k + k - 1,
    modulo n. Places need not be sent, and the values ride an all-reduce. Biased: use it with a
    memory.
    Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, https://arxiv.org/abs/1905.13727 ("random
    block").

    Differs from the paper: the block moves on by its length instead of at random, so that every
    entry has its turn.
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    biased = True

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "must lie in (0, 1]")

    def compress(self, x: Tensor, state: State, step: StepInfo) -> SharedSparse:
        """Return the entries of `x` [L, n] whose turn it is."""
        n = x.shape[1]
        k = count(self.ratio, n)
        index = (torch.arange(k, device=x.device) + step.number * k % n) % n  # [k]
        return SharedSparse.of(x[:, index], index, n)
