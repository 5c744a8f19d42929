"""Send each entry in four bits: a sign and three bits of exponent.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Codebook, State
from ...registry import register
from .contract import Quantizer, StepInfo
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
        powers = torch.tensor((0.0, *_POWERS), dtype=values.dtype, device=values.device)
        between = (powers[1:] + powers[:-1]) / 2
        codes = _codes(values, divisor, between)
        return Codebook(codes, scale, values.dtype, counts, 4, _TABLE)


def _codes(values: Tensor, divisor: Tensor, between: Tensor) -> Tensor:
    """Return the power just above each of `values` [L, k], uint8, plus 8 of those below zero."""
    if compiled_loops.takes(values):
        from .bin_kernels import powers_below

        return powers_below(values, divisor, between, _NEGATIVE)
    codes = torch.bucketize(values.abs() / divisor, between)
    return (codes + _NEGATIVE * (values < 0)).to(torch.uint8)
