"""Send one stretch of entries after the other.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Joined, SharedSparse, State
from ...communication.messages.joined import shared_group
from ...registry import register
from ...settings import count, require
from .contract import Compressor, StepInfo
from .group import Group


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

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the entries of each segment of `x` [L, P] whose turn it is."""
        cuts, step = group.cuts, group.steps[0].number
        kept = Cuts(tuple(count(self.ratio, n) for n in cuts.sizes))
        begun = tuple(step * k % n for n, k in zip(cuts.sizes, kept.sizes, strict=True))
        first = torch.tensor([begun], device=x.device)  # [1, S]
        within = kept.spread(first)[0] + kept.place(x.device)  # [K]
        index = within % kept.repeated(cuts.sizes, x.device) + cuts.begin(kept, x.device)
        return shared_group(cuts, kept, x[:, index], index)
