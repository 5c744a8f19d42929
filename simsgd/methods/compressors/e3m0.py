"""Send each entry in four bits: a sign and three bits of exponent.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Codebook, Joined, State
from ...communication.messages.joined import coded_group
from ...registry import register
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions
from .row_reductions import as_float32, row_peak

_POWERS = tuple(2.0**-exponent for exponent in range(6, -1, -1))  # 1/64 ... 1
_NEGATIVE = 8  # code of a negative zero
_TABLE = (0.0, *_POWERS, 0.0, *(-power for power in _POWERS))


@register("compressor", "e3m0")
@dataclass(frozen=True)
class E3M0(Quantizer):
    """Each worker sends each entry as the nearest of seven powers of two, a sign, or zero.

    A float of four bits, E3M0: a sign, three bits of exponent, none of mantissa. The largest power
    is the largest magnitude of the segment, the smallest one a 64th of it; the lowest exponent is
    zero. 4 bits an entry, and a float32. Biased: use it with a memory.
    Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025,
    https://arxiv.org/abs/2501.18512.

    Differs from the paper, which says nothing of a scale: the powers are relative to the largest
    magnitude, and sums are taken in the dtype of the model.
    """

    biased = True

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Codebook:
        """Return the power of each of `values` [L, k], and the largest magnitude."""
        scale = as_float32(row_peak(values))  # [L, 1]
        divisor = torch.where(scale > 0, scale, 1.0).to(values.dtype)
        codes = _codes(values, divisor, self._between(values))
        return Codebook(codes, scale, values.dtype, counts, 4, _TABLE)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the power of each of `values` [L, P], and each segment's largest magnitude."""
        cuts, dtype = group.cuts, values.dtype
        scale = as_float32(GroupReductions(cuts).peak(values))  # [L, S]
        divisor = cuts.spread(torch.where(scale > 0, scale, 1.0).to(dtype))
        codes = _codes(values, divisor, self._between(values))
        pieces = zip(cuts.split(codes), scale.split(1, dim=1), strict=True)
        parts = [Codebook(own, peak, dtype, None, 4, _TABLE) for own, peak in pieces]
        table = torch.tensor(_TABLE, dtype=dtype, device=values.device)
        return coded_group(cuts, parts, cuts.spread(scale.to(dtype)) * table[codes.int()])

    def _between(self, like: Tensor) -> Tensor:
        """Return halfway between which powers an entry lies, ascending."""
        powers = torch.tensor((0.0, *_POWERS), dtype=like.dtype, device=like.device)
        return (powers[1:] + powers[:-1]) / 2


def _codes(values: Tensor, divisor: Tensor, between: Tensor) -> Tensor:
    """Return the power just above each of `values` [L, k], uint8, plus 8 of those below zero."""
    if compiled_loops.takes(values) and divisor.shape[1] == 1:
        from .bin_kernels import powers_below

        return powers_below(values, divisor, between, _NEGATIVE)
    codes = torch.bucketize(values.abs() / divisor, between)
    return (codes + _NEGATIVE * (values < 0)).to(torch.uint8)
