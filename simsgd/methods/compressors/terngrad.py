"""Send the largest magnitude with each sign, or nothing, at random.

Letters: L workers hosted here, n elements of one segment, k of them given, u uniform in [0, 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Joined, State, Ternary
from ...communication.messages.joined import coded_by_segment
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError, require
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions
from .row_reductions import as_float32, entries_of, row_peak, row_std


@register("compressor", "terngrad")
@dataclass(frozen=True)
class TernGrad(Quantizer):
    """Each worker sends -s, 0 or +s for each entry, s being its largest magnitude.

    C(x) = s sign(x) b, b = 1 with probability |x| / s, of x clipped to c standard deviations. It is
    unbiased but for the clipping, which leaves nothing of a constant: its deviation is 0. 2 bits an
    entry, or 1.6 with pack=base3, and a float32. With `shared_scale` s is the largest over workers;
    workers find it in an all-reduce beforehand, and messages go without it.
    Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
    NeurIPS 2017, https://arxiv.org/abs/1705.07878.

    Differs from the paper: a single entry is not clipped; the last layer is quantized as well.
    """

    clip: float | None = 2.5  # c, standard deviations (population) kept, above 0; none: no clipping
    shared_scale: bool = False  # one s for all workers
    pack: str = "2bit"  # 2bit, or base3: five entries to a byte

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise SettingError("clip", self.clip, "must be above 0, or none")
        if not isinstance(self.shared_scale, bool):
            raise SettingError("shared_scale", self.shared_scale, "must be true or false")
        require(self.pack in ("2bit", "base3"), "pack", self.pack, "must be 2bit or base3")

    @property
    def biased(self) -> bool:
        """Whether it clips."""
        return self.clip is not None

    @property
    def needs_global_max(self) -> bool:  # type: ignore[override]
        """Whether the scale is shared."""
        return self.shared_scale

    def local_max(self, x: Tensor) -> Tensor:
        """Return the largest magnitude of each row of `x` [L, n] once clipped, [L, 1]."""
        return _clipped_peak(x, self._bound(x, None))

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Ternary:
        """Return -1, 0 or 1 for each of `values` [L, k], and the scale."""
        bound = self._bound(values, counts)
        if self.shared_scale:
            assert step.global_max is not None
            scale = step.global_max  # [1, 1]
            codes = _ternary(values, bound, scale, step.key)
            nothing = scale.new_empty(len(values), 0)
            return Ternary(codes, nothing, values.dtype, counts, self.pack, shared=scale)
        scale = _clipped_peak(values, bound)  # [L, 1]
        codes = _ternary(values, bound, scale, step.key)
        return Ternary(codes, scale, values.dtype, counts, self.pack)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return -1, 0 or 1 for each of `values` [L, P], and the scale of each segment."""
        rows, spread, bound = GroupReductions(group.cuts), group.cuts.spread, None
        peak = rows.peak(values)
        if self.clip is not None:
            bound = torch.where(rows.entries(values) < 2, torch.inf, self.clip * rows.std(values))
            peak = torch.minimum(peak, bound)
        scale = as_float32(peak)  # [L, S]
        clipped = values if bound is None else values.clamp(-spread(bound), spread(bound))
        codes = _chosen(clipped, spread(scale), group.uniform(values))
        whole = Ternary(codes, spread(scale), values.dtype, None, self.pack)
        return coded_by_segment(group.cuts, whole, scale)

    def _bound(self, values: Tensor, counts: Tensor | None) -> Tensor | None:
        """Return what magnitudes are clipped to, [L, 1], or None."""
        if self.clip is None:
            return None
        entries = entries_of(values, counts)
        bound = self.clip * row_std(values, entries)
        return torch.where(entries < 2, torch.inf, bound)


def _clipped_peak(values: Tensor, bound: Tensor | None) -> Tensor:
    """Return the largest magnitude in each row of `values` [L, k] once clipped, [L, 1]."""
    peak = row_peak(values)
    return as_float32(peak if bound is None else torch.minimum(peak, bound))


def _ternary(values: Tensor, bound: Tensor | None, scale: Tensor, key: RandomKey) -> Tensor:
    """Return -1, 0 or 1 for each of `values` [L, k], clipped to `bound`, int8."""
    if compiled_loops.takes(values):
        from .rounding_kernels import ternary

        return ternary(values, bound, scale, key.keys())
    clipped = values if bound is None else values.clamp(-bound, bound)
    return _chosen(clipped, scale, key.uniform(values.shape[1], values.dtype))


def _chosen(clipped: Tensor, scale: Tensor, u: Tensor) -> Tensor:
    """Return the same of values that are clipped already, by the numbers `u` [L, k]."""
    chosen = u.mul_(scale.to(clipped.dtype)) < clipped.abs()
    return clipped.sign().to(torch.int8).mul_(chosen)
