"""Send one bit of each entry.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...communication.messages import Joined, Message, Signs, State, Ternary
from ...communication.messages.joined import coded_by_segment, coded_group
from ...registry import register
from ...settings import SettingError, require
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions
from .row_reductions import as_float32, entries_of, mean_by_sign, mean_magnitude, row_norm


@register("compressor", "sign")
@dataclass(frozen=True)
class Sign(Quantizer):
    """Each worker sends the signs of its entries and, by default, their mean magnitude.

    C(x) = ||x||_1 / n * sign(x), or sign(x) with `scale=none`; sign(0) = +1, as a bit has no third
    value: without a memory, entries that never get a gradient move at every step. `zero=keep` sends
    a zero as zero, at 1.6 bits an entry: five to a byte. Biased: use it with a memory. With the
    scale it contracts: ||C(x) - x||^2 = (1 - d) ||x||^2, d = ||x||_1^2 / (n ||x||_2^2). 1 bit an
    entry, and a float32 for the scale.
    Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019, https://arxiv.org/abs/1901.09847
    (scale=mean); Bernstein et al., "signSGD", ICML 2018, https://arxiv.org/abs/1802.04434
    (scale=none); Tang et al., "1-bit Adam", ICML 2021, https://arxiv.org/abs/2102.02888 (scale=rms,
    which keeps the norm).
    """

    scale: str | None = "mean"  # mean or rms: times the mean magnitude, or its root mean square
    zero: str = "plus"  # plus: sign(0) = +1; keep: 0
    biased = True

    def __post_init__(self) -> None:
        if self.zero not in ("plus", "keep"):
            raise SettingError("zero", self.zero, "must be plus or keep")
        require(
            self.scale in ("mean", "rms", None), "scale", self.scale, "must be mean, rms or none"
        )

    @property
    def moves_zeros(self) -> bool:  # type: ignore[override]
        """Whether a zero is sent as +."""
        return self.zero == "plus"

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Message:
        """Return the signs of `values` [L, k], and their mean magnitude."""
        if self.scale is None:
            scales = torch.empty(len(values), 0, device=values.device)
        else:
            entries = entries_of(values, counts)
            size = mean_magnitude(values, entries)
            if self.scale == "rms":
                size = row_norm(values) / entries.clamp(min=1).sqrt()
            scales = as_float32(size)  # [L, 1]
        if self.zero == "plus":
            return Signs(values < 0, scales, values.dtype, counts, num_scales=scales.shape[1])
        one = None if self.scale else torch.ones(1, 1, device=values.device)
        codes = values.sign().to(torch.int8)
        return Ternary(codes, scales, values.dtype, counts, "base3", shared=one)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the signs of `values` [L, P], and the mean magnitude of each segment."""
        if self.scale is None:
            one = self.quantize(values, None, {}, group.steps[0])
            assert isinstance(one, Signs | Ternary)
            return coded_by_segment(group.cuts, one, one.scales)
        rows = GroupReductions(group.cuts)
        if self.scale == "rms":
            scales = as_float32(rows.norm(values) / rows.entries(values).sqrt())
        else:
            scales = as_float32(rows.mean_magnitude(values))  # [L, S]
        of_each, dtype = group.cuts.spread(scales), values.dtype
        if self.zero == "plus":
            signs = Signs(values < 0, of_each, dtype, None, num_scales=1)
            return coded_by_segment(group.cuts, signs, scales)
        codes = values.sign().to(torch.int8)
        return coded_by_segment(group.cuts, Ternary(codes, of_each, dtype, None, "base3"), scales)


@register("compressor", "onebit")
@dataclass(frozen=True)
class OneBit(Quantizer):
    """Each worker sends whether each entry is negative, and the means of the two kinds.

    A negative entry arrives as the mean of the negative ones, any other as the mean of the rest; of
    all values for two kinds these are the nearest. Biased: use it with a memory. 1 bit an entry and
    two float32.
    Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", Interspeech 2014.

    Differs from the paper: the means are those of the segment or of what was selected, not of each
    column of a weight matrix.
    """

    biased = True

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Signs:
        """Return the signs of `values` [L, k], and the mean of each."""
        least, other = map(as_float32, mean_by_sign(values, entries_of(values, counts)))
        scales = torch.cat([-least, other], dim=1)  # [L, 2]
        return Signs(values < 0, scales, values.dtype, counts, num_scales=2)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the signs of `values` [L, P], and the mean of each in each segment."""
        least, other = map(as_float32, GroupReductions(group.cuts).mean_by_sign(values))
        scales = torch.stack([-least, other], dim=2)  # [L, S, 2]
        whole = Signs(values < 0, scales, values.dtype, None, num_scales=2)
        pieces = zip(group.cuts.split(whole.codes), scales.unbind(1), strict=True)
        parts = [replace(whole, codes=codes, scales=own) for codes, own in pieces]
        low, high = (group.cuts.spread(own.to(values.dtype)) for own in scales.unbind(2))
        return coded_group(group.cuts, parts, torch.where(whole.codes, low, high))
