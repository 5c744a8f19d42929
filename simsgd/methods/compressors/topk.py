"""Send the largest entries of each gradient.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Joined, Sparse, State
from ...communication.messages.joined import sparse_group
from ...registry import register
from ...settings import count, require
from .contract import Compressor, StepInfo
from .group import Group
from .topk_selection import largest, largest_of_each


@register("compressor", "topk")
@dataclass(frozen=True)
class TopK(Compressor):
    """Each worker sends its k largest entries by magnitude, exactly.

    k = max(1, ceil(ratio * n)), counted in decimal. Of equal magnitudes the lowest index goes.
    Biased: use it with a memory.
    Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
    https://arxiv.org/abs/1704.05021.
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    biased = True

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "must lie in (0, 1]")

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return the k largest entries of each row of `x` [L, n]."""
        index = largest(x, count(self.ratio, x.shape[1]))  # [L, k]
        return Sparse.of(x.gather(1, index), index, x.shape[1])

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the k largest entries of each segment of `x` [L, P]."""
        kept = Cuts(tuple(count(self.ratio, n) for n in group.cuts.sizes))
        index = largest_of_each(x, group.cuts, kept)  # [L, K]
        return sparse_group(group.cuts, kept, x.gather(1, index), index)
