"""Send each entry in fewer bits, rounded to the nearest.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Cast, Joined, Levels, State
from ...communication.messages.joined import coded_by_segment, dense_group
from ...registry import register
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions
from .row_reductions import as_float32, row_peak

_LARGEST = 127  # code of int8


class _Rounded(Quantizer):
    """A cast to a floating-point dtype and back."""

    dtype: ClassVar[torch.dtype]
    biased = True

    def quantize(self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo) -> Cast:
        """Return `values` [L, k] as they come out of a trip in the dtype."""
        most = min(torch.finfo(self.dtype).max, torch.finfo(values.dtype).max)
        if values.dtype == torch.float32 and compiled_loops.takes(values):
            from .cast_kernels import rounded

            return Cast(rounded(values, self.dtype, most), self.dtype, counts)
        trip = values.clamp(-most, most).to(self.dtype).to(values.dtype)
        return Cast(trip, self.dtype, counts)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return `values` [L, P] as they come out of a trip in the dtype."""
        return dense_group(group.cuts, self.quantize(values, None, {}, group.steps[0]))


@register("compressor", "fp16")
@dataclass(frozen=True)
class FP16(_Rounded):
    """Each worker sends its entries in IEEE half precision, 2 bytes each.

    11 significant bits, from 6e-8 to 65504, where larger ones stop. Rounded to the nearest: use a
    memory to keep what is lost. It may ride an all-reduce, with sums in the gradient's dtype.
    """

    dtype = torch.float16


@register("compressor", "bf16")
@dataclass(frozen=True)
class BF16(_Rounded):
    """Each worker sends its entries in bfloat16, 2 bytes each.

    8 significant bits in the range of float32. Rounded to the nearest: use a memory to keep what is
    lost. It may ride an all-reduce, with sums in the gradient's dtype.
    """

    dtype = torch.bfloat16


@register("compressor", "int8")
@dataclass(frozen=True)
class Int8(Quantizer):
    """Each worker sends its entries as whole multiples of 1/127 of the largest magnitude.

    C(x) = s / 127 round(127 x / s), s = max |x|. Rounded to the nearest, so small ones become 0:
    biased, use it with a memory. 1 byte an entry and a float32 for s.
    """

    biased = True

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Levels:
        """Return the multiple for each of `values` [L, k], and the largest magnitude."""
        scale = as_float32(row_peak(values))  # [L, 1]
        divisor = scale.to(values.dtype)
        codes = _nearest(values, torch.where(divisor > 0, divisor, 1.0))
        return Levels(codes, scale, values.dtype, counts, levels=_LARGEST)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the multiple for each of `values` [L, P], and each segment's largest magnitude."""
        scale = as_float32(GroupReductions(group.cuts).peak(values))  # [L, S]
        divisor = scale.to(values.dtype)
        of_each = group.cuts.spread(torch.where(divisor > 0, divisor, 1.0))
        whole = Levels(
            _nearest(values, of_each), group.cuts.spread(scale), values.dtype, None, levels=_LARGEST
        )
        return coded_by_segment(group.cuts, whole, scale)


def _nearest(values: Tensor, scale: Tensor) -> Tensor:
    """Return the multiple of scale / 127 nearest to each of `values` [L, k], int8."""
    if compiled_loops.takes(values) and scale.shape[1] == 1:
        from .rounding_kernels import nearest

        return nearest(values, scale, _LARGEST)
    multiple = (values / scale).mul_(_LARGEST).round_()
    return multiple.clamp_(-_LARGEST, _LARGEST).to(torch.int8)
