"""Send in which of few equal bins each entry lies, and the mean of each bin.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Codebook, Joined, State
from ...communication.messages.joined import coded_group
from ...registry import register
from ...settings import SettingError
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions
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
        passes = _compiled if compiled_loops.takes(values) else _by_torch
        shift, codes, totals, counted = passes(values, entries, bins)
        table = totals / counted.clamp(min=1)
        scales = torch.cat([shift, table], 1).float()  # [L, 1 + bins]
        return Codebook(codes, scales, values.dtype, counts, self.bits)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the bin of each of `values` [L, P], and the means in each segment."""
        cuts, bins, dtype = group.cuts, 2**self.bits, values.dtype
        rows = GroupReductions(cuts)
        wide = values.double()
        entries = rows.entries(wide)  # [1, S]
        shift = _mean(rows.sum(wide), entries)  # [L, S]
        centered = wide - cuts.spread(shift)
        width = _width(rows.sum(centered.square()), entries, bins)
        codes = _places(centered, cuts.spread(width), bins)  # [L, P]
        column = cuts.owner(values.device) * bins + codes
        zeros = centered.new_zeros(len(values), len(cuts.sizes) * bins)
        ones = torch.ones_like(centered)
        totals, counted = (zeros.scatter_add(1, column, each) for each in (centered, ones))
        table = (totals / counted.clamp(min=1)).unflatten(1, (-1, bins))
        scales = torch.cat([shift.unsqueeze(2), table], 2).float()  # [L, S, 1 + bins]
        pieces = zip(cuts.split(codes.to(torch.uint8)), scales.unbind(1), strict=True)
        parts = [Codebook(own, told, dtype, None, self.bits) for own, told in pieces]
        numbers = scales.to(dtype)
        means = (numbers[..., :1] + numbers[..., 1:]).flatten(1)  # [L, S bins]
        return coded_group(cuts, parts, means.gather(1, column))


def _by_torch(values: Tensor, entries: Tensor, bins: int) -> tuple[Tensor, ...]:
    """Return the mean of a row's first `entries` [L, 1] values, the bin of each, and two of bins.

    These are the sum of what lies in a bin, less the mean, and its number, [L, bins] each.
    """
    sent = torch.arange(values.shape[1], device=values.device) < entries  # [L, k]
    shift = _mean(row_sum(values.double()), entries)
    centered = (values.double() - shift).mul_(sent)
    width = _width(row_sum(centered.square()), entries, bins)
    codes = _places(centered, width, bins).mul_(sent)
    zeros = centered.new_zeros(len(values), bins)
    totals, counted = (zeros.scatter_add(1, codes, each) for each in (centered, sent.double()))
    return shift, codes.to(torch.uint8), totals, counted


def _compiled(values: Tensor, entries: Tensor, bins: int) -> tuple[Tensor, ...]:
    """Return the same from three passes over the values, which keep nothing between."""
    from .bin_kernels import binned, double_sums

    zero = torch.zeros_like(entries)
    shift = _mean(row_sum(double_sums(values, zero, entries, squares=False)), entries)
    squares = row_sum(double_sums(values, shift, entries, squares=True))
    width = _width(squares, entries, bins)
    return shift, *binned(values, shift, width, entries, bins)


def _places(centered: Tensor, width: Tensor, bins: int) -> Tensor:
    """Return the bins of offsets from the mean, int64; NaN goes into the first."""
    place = (centered / width).add_(bins // 2).round_().clamp_(0, bins - 1)
    return place.nan_to_num_(0).long()


def _mean(total: Tensor, entries: Tensor) -> Tensor:
    """Return the mean as it is sent, in float64."""
    return (total / entries.clamp(min=1)).float().to(torch.float64)


def _width(squares: Tensor, entries: Tensor, bins: int) -> Tensor:
    """Return how wide a bin is, where the squared offsets from the mean come to `squares`."""
    deviation = (squares / (entries - 1).clamp(min=1)).sqrt_()
    return torch.where(deviation > 0, _WIDTH * deviation / bins, 1.0)
