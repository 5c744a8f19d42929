"""Send the entries that stand out in their bin.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.cuts import Cuts, end_to_end
from ...communication.messages import Joined, Sparse, State
from ...communication.messages.joined import marked_group, signed_group
from ...communication.messages.signs import Signs
from ...registry import register
from ...settings import SettingError, require
from .contract import Compressor, StepInfo
from .group import Group
from .group_reductions import GroupReductions, bucket_sizes
from .row_reductions import as_float32, bucket_peak, row_mean

_CONVOLUTION, _OTHER = 50, 500  # entries of a bin, where the setting is "auto"
_VARIANTS = ("paper", "values")


@register("compressor", "adacomp")
@dataclass(frozen=True)
class AdaComp(Compressor):
    """Each worker sends the entries that one more gradient would make the largest of their bin.

    G = residual + g is the compensated gradient and g that of this step. Of each bin of consecutive
    entries those go for which |G + c g| >= max |G| over the bin; a bin of zeros sends
    nothing, nor does an entry of zero. How many go follows the gradient. The value of each is
    sign(G) times the mean, over all bins, of max |G|: one bit an entry, and one float a worker.
    Biased: use it with memory residual.
    Chen et al., "AdaComp: Adaptive Residual Gradient Compression for Data-Parallel Distributed
    Training", AAAI 2018, https://arxiv.org/abs/1712.02679.

    Differs from the paper: places are coded as for every sparse message, not by 6 or 14 bits within
    the bin and two bits of value. `variant=values` sends the values of G themselves; a well-known
    implementation sends those of G + c g, which leaves -c g behind, and has one bin for all.
    """

    bin: int | str = "auto"  # consecutive entries; auto: 50 of a convolution's, 500 of others'
    c: float = 1.0  # how many gradients ahead is looked, 0 or more
    variant: str = "paper"  # paper: sign times one scale; values: the values of G
    biased = True
    needs_gradient = True

    def __post_init__(self) -> None:
        if self.bin != "auto" and not (isinstance(self.bin, int) and self.bin >= 1):
            raise SettingError("bin", self.bin, "must be auto or at least 1")
        require(0 <= self.c < float("inf"), "c", self.c, "must be a number of at least 0")
        rule = f"must be one of {', '.join(_VARIANTS)}"
        require(self.variant in _VARIANTS, "variant", self.variant, rule)

    def for_shape(self, shape: Sequence[int]) -> "AdaComp":
        """Return the method with the bins of a parameter of this shape."""
        if self.bin != "auto":
            return self
        return replace(self, bin=_CONVOLUTION if len(shape) == 4 else _OTHER)

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return the entries of `x` [L, n] that stand out; step has the gradient."""
        assert step.gradient is not None
        most = bucket_peak(x, self._size)  # [L, bins], max |G|
        found = Sparse.where(self._outstanding(x, step.gradient, most, self._size), x)
        return found if self.variant == "values" else self._quantized(found, most)

    @property
    def group_key(self) -> object:
        """The method with whatever bins: each segment of a group has its own."""
        return replace(self, bin="auto")

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the entries of each segment of `x` [L, P] that stand out."""
        own = [each for each in group.compressors if isinstance(each, AdaComp)]
        cuts, sizes = group.cuts, tuple(each._size for each in own)
        pieces = zip(cuts.split(x), group.steps, strict=True)
        gradient = end_to_end([x if s.gradient is None else s.gradient for x, s in pieces])
        bins = Cuts(bucket_sizes(cuts.sizes, sizes))
        owner = bins.owner(x.device).expand_as(x)
        most = x.new_zeros(len(x), len(bins.sizes)).scatter_reduce_(1, owner, x.abs(), "amax")
        ahead = torch.add(x, gradient, alpha=self.c)
        found = marked_group(cuts, (ahead.abs() >= most.gather(1, owner)) & (x != 0), x)
        if self.variant == "values":
            return found
        of_each = Cuts(tuple(-(-n // size) for n, size in zip(cuts.sizes, sizes, strict=True)))
        return signed_group(found, as_float32(GroupReductions(of_each).mean_magnitude(most)))

    @property
    def _size(self) -> int:
        return _OTHER if isinstance(self.bin, str) else self.bin

    def _outstanding(self, x: Tensor, gradient: Tensor, most: Tensor, size: int) -> Tensor:
        """Return where |G + c g| >= max |G| of the bin and G is not 0, G being `x` [L, n]."""
        if compiled_loops.takes(x, gradient):
            from .bar_kernels import outstanding

            if self.c == 1:
                return outstanding(x, gradient, x, most, size)
            ahead = torch.add(x, gradient, alpha=self.c)  # fused with the product, or not
            return outstanding(ahead, None, x, most, size)
        ahead = torch.add(x, gradient, alpha=self.c)  # [L, n], H = G + c g
        bar = most.repeat_interleave(size, 1)[:, : x.shape[1]]
        return (ahead.abs() >= bar) & (x != 0)

    def _quantized(self, found: Sparse, most: Tensor) -> Sparse:
        """Return what was found as sign(G) times the mean of `most` [L, bins], max |G| by bin."""
        values = found.values
        num_bins = torch.full_like(most[:, :1], most.shape[1])
        scale = as_float32(row_mean(most, num_bins))  # [L, 1]
        signs = Signs(values < 0, scale, values.dtype, found.counts, num_scales=1)
        return replace(found, inner=signs)
