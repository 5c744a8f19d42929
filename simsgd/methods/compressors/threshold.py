"""Send the entries that are large enough, as many as there are.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Joined, Sparse, State
from ...communication.messages.joined import marked_group
from ...registry import register
from ...settings import require
from .contract import Compressor, StepInfo
from .group import Group
from .group_reductions import GroupReductions
from .row_reductions import row_peak


@register("compressor", "threshold")
@dataclass(frozen=True)
class Threshold(Compressor):
    """Each worker sends its entries of magnitude v or more; it may be none, or all.

    Biased: use it with a memory.
    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech
    2015; in the form of Dutta et al., "On the Discrepancy between the Theoretical Analysis and
    Practical Implementations of Compressed Communication", AAAI 2020,
    https://arxiv.org/abs/1911.08250.
    """

    v: float  # least magnitude sent, 0 or more
    biased = True

    def __post_init__(self) -> None:
        require(0 <= self.v < math.inf, "v", self.v, "must be a number of at least 0")

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return the entries of `x` [L, n] that are large enough."""
        if compiled_loops.takes(x):
            from .bar_kernels import reaching

            bar = x.new_full((len(x), 1), self.v)
            return Sparse.where(reaching(x, bar, x.shape[1]), x)
        return Sparse.where(x.abs() >= self.v, x)

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the entries of each segment of `x` [L, P] that are large enough."""
        return marked_group(group.cuts, x.abs() >= self.v, x)


@register("compressor", "adaptive_threshold")
@dataclass(frozen=True)
class AdaptiveThreshold(Compressor):
    """Each worker sends its entries of at least half the largest magnitude: 2 |x| >= max |x|.

    Of a segment of zeros nothing is sent. Biased: use it with a memory.
    Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical
    Implementations of Compressed Communication", AAAI 2020, https://arxiv.org/abs/1911.08250.
    """

    biased = True

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return the entries of `x` [L, n] that are large enough."""
        if compiled_loops.takes(x):
            from .bar_kernels import reaching

            return Sparse.where(reaching(x, row_peak(x), x.shape[1], factor=2, zero=False), x)
        size = x.abs()
        return Sparse.where((2 * size >= size.amax(1, keepdim=True)) & (size > 0), x)

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the entries of each segment of `x` [L, P] that are large enough."""
        size, peaks = x.abs(), GroupReductions(group.cuts).peak(x)
        mask = (2 * size >= group.cuts.spread(peaks)) & (size > 0)
        return marked_group(group.cuts, mask, x)
