"""Send in which of few equal bins each entry lies, and the mean of each bin.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Codebook, State
from ...registry import register
from ...settings import SettingError
from .contract import Quantizer, StepInfo
from .row_reductions import entries_of, row_sum

_WIDTH = 6.0  # standard deviations that all bins together are wide


@register("compressor", "bins")
@dataclass(frozen=True)
class Bins(Quantizer):
    """Each worker sends in which of 2^bits equal bins each entry lies, and the mean of each bin.

    The bins are six standard deviations wide together, around the mean; what lies outside is in the
    first or the last. An entry arrives as the mean of those in its bin. `bits` an entry, and a
    float32 for the mean of all and for each bin. Biased: use it with a memory.
    Sarfi, Therien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    2025, https://arxiv.org/abs/2508.15706, as its code does it.

    Differs from the code: means and deviation are computed in float64.
    """

    bits: int  # 2 to 8
    biased = True

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not 2 <= self.bits <= 8:
            raise SettingError("bits", self.bits, "must be a whole number from 2 to 8")

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Codebook:
        """Return the bin of each of `values` [L, k], and their means."""
        bins = 2**self.bits
        entries = entries_of(values, counts).double()  # [L, 1]
        sent = torch.arange(values.shape[1], device=values.device) < entries  # [L, k]
        shift = row_sum(values.double()) / entries.clamp(min=1)
        shift = shift.float().to(torch.float64)  # as it is sent
        centered = (values.double() - shift).mul_(sent)
        deviation = (row_sum(centered.square()) / (entries - 1).clamp(min=1)).sqrt_()
        width = torch.where(deviation > 0, _WIDTH * deviation / bins, 1.0)
        codes = (centered / width + bins // 2).round_().clamp_(0, bins - 1).long()
        codes.mul_(sent)
        zeros = centered.new_zeros(len(values), bins)
        totals = zeros.scatter_add(1, codes, centered)
        counted = zeros.scatter_add(1, codes, sent.double())
        table = totals / counted.clamp(min=1)
        scales = torch.cat([shift, table], 1).float()  # [L, 1 + bins]
        return Codebook(codes.to(torch.uint8), scales, values.dtype, counts, self.bits)
