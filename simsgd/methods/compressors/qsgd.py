"""Send each entry as one of few levels of the norm, rounded at random.

Letters: L workers hosted here, n elements of one segment, k of them given, s levels, u uniform
in [0, 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.cuts import Cuts
from ...communication.elias_gamma import num_bits_by_segment
from ...communication.messages import Joined, Levels, State
from ...communication.messages.joined import coded_group
from ...communication.messages.levels import code_dtype
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError, require
from .contract import Quantizer, StepInfo
from .group import Group
from .group_reductions import GroupReductions, bucket_sizes, buckets_of_group
from .row_reductions import (
    as_float32,
    bucket_norm,
    bucket_peak,
    buckets,
    entries_of,
    row_norm,
    row_peak,
)

_MOST_LEVELS = 1 << 22  # as far as float32 tells a level from the next


@register("compressor", "qsgd")
@dataclass(frozen=True)
class QSGD(Quantizer):
    """Each worker sends each entry as one of s levels of the norm, rounded at random.

    C(x) = ||x|| sign(x) l / s, l = floor(r) + (u < r - floor(r)), r = s |x| / ||x||, the norm being
    that of the entry's bucket. Unbiased, with E||C(x) - x||^2 <= w ||x||^2, w = min(n / s^2,
    sqrt(n) / s), n being the size of the bucket; `biased` divides by 1 + w, after which it
    contracts: use that with a memory. 1 + ceil(log2(s + 1)) bits an entry, or the bits of an Elias
    code, which pays where most levels are 0; and a float32 a bucket.
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, https://arxiv.org/abs/1610.02132; the contraction: Koloskova, Stich, Jaggi,
    "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication",
    ICML 2019, https://arxiv.org/abs/1902.00340.
    """

    levels: int  # s, levels above zero, at least 1
    bucket: int | None = None  # entries to a norm, such as 128 or 512; none: all
    norm: str = "l2"  # l2 or max
    biased: bool = False  # divide by 1 + w
    code: str = "fixed"  # fixed: as many bits for each; elias: see elias.py

    def __post_init__(self) -> None:
        if not (_is_integer(self.levels) and 1 <= self.levels <= _MOST_LEVELS):
            rule = f"must be a whole number from 1 to {_MOST_LEVELS}"
            raise SettingError("levels", self.levels, rule)
        if self.bucket is not None and not (_is_integer(self.bucket) and self.bucket >= 1):
            raise SettingError("bucket", self.bucket, "must be a whole number from 1, or none")
        require(self.norm in ("l2", "max"), "norm", self.norm, "must be l2 or max")
        if not isinstance(self.biased, bool):
            raise SettingError("biased", self.biased, "must be true or false")
        require(self.code in ("fixed", "elias"), "code", self.code, "must be fixed or elias")

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Levels:
        """Return the level of each of `values` [L, k], and the norm of each bucket."""
        k = values.shape[1]
        size = k if self.bucket is None else min(self.bucket, k)
        measure = bucket_norm if self.norm == "l2" else bucket_peak
        norm = as_float32(measure(values, size))  # [L, buckets]
        codes = _levels(values, norm, size, self.levels, step.key)
        if self.biased:
            norm = (norm / (1 + self._variance(values, counts, size))).float()
        return Levels(codes, norm, values.dtype, counts, self.levels, self.bucket, coding=self.code)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the level of each of `values` [L, P], and the norm of each bucket of a segment."""
        cuts, dtype = group.cuts, values.dtype
        norm, spread = self._norms_of_group(values, cuts)
        divisor = norm.to(dtype)
        r = values.abs().div_(spread(torch.where(divisor > 0, divisor, 1.0))).mul_(self.levels)
        codes = _rounded(r, values, group.uniform(values), self.levels)
        if self.biased:
            norm = (norm / (1 + self._variances_of_group(values, cuts))).float()
        whole = Levels(codes, spread(norm), dtype, None, self.levels, None, coding=self.code)
        counts = [1 if self.bucket is None else -(-n // self.bucket) for n in cuts.sizes]
        own = zip(
            cuts.split(codes), norm.split(counts, dim=1), self._bits(codes, cuts), strict=True
        )
        parts = [
            replace(whole, codes=c, scales=s, bucket=self.bucket, stream_bits=bits)
            for c, s, bits in own
        ]
        return coded_group(cuts, parts, whole.values())

    def _bits(self, codes: Tensor, cuts: Cuts) -> Sequence[Tensor | None]:
        """Return the bits of each segment's stream, [L], None where there is none."""
        if self.code != "elias":
            return [None] * len(cuts.sizes)
        return num_bits_by_segment(codes, cuts).unbind(1)

    def _norms_of_group(
        self, values: Tensor, cuts: Cuts
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the norm of each bucket, [L, buckets], and what spreads numbers of them."""
        if self.bucket is None:
            rows = GroupReductions(cuts)
            norm = rows.norm(values) if self.norm == "l2" else rows.peak(values)
            return as_float32(norm), cuts.spread
        in_buckets = buckets_of_group(values, cuts, self.bucket)  # [L, buckets, bucket]
        measure = row_norm if self.norm == "l2" else row_peak
        smaller = Cuts(bucket_sizes(cuts.sizes, (self.bucket,) * len(cuts.sizes)))
        return as_float32(measure(in_buckets).squeeze(2)), smaller.spread

    def _variances_of_group(self, values: Tensor, cuts: Cuts) -> Tensor:
        """Return w of each bucket, [1, buckets]."""
        sizes = (
            cuts.sizes
            if self.bucket is None
            else bucket_sizes(cuts.sizes, (self.bucket,) * len(cuts.sizes))
        )
        return self._variance_of(GroupReductions(Cuts(sizes)).entries(values))

    def _variance(self, values: Tensor, counts: Tensor | None, size: int) -> Tensor:
        """Return w of each bucket of `size` entries, [L, buckets]."""
        first = torch.arange(0, values.shape[1], size, device=values.device)
        return self._variance_of((entries_of(values, counts) - first).clamp(0, size))

    def _variance_of(self, n: Tensor) -> Tensor:
        """Return w of buckets of so many entries."""
        s = torch.full_like(n, self.levels)
        return torch.minimum(n / s**2, n.sqrt() / s)


def _levels(values: Tensor, norm: Tensor, size: int, s: int, key: RandomKey) -> Tensor:
    """Return the signed level of each of `values` [L, k] in buckets of `size`."""
    divisor = norm.to(values.dtype)
    divisor = torch.where(divisor > 0, divisor, 1.0)  # [L, buckets]
    if compiled_loops.takes(values):
        from .rounding_kernels import levels

        return levels(values, divisor, size, s, key.keys())
    x = buckets(values, size)  # [L, buckets, size]
    r = x.abs().div_(divisor.unsqueeze(2)).mul_(s)
    u = key.uniform(x.shape[1] * x.shape[2], x.dtype).view_as(x)
    return _rounded(r, x, u, s).flatten(1)[:, : values.shape[1]]


def _rounded(r: Tensor, x: Tensor, u: Tensor, s: int) -> Tensor:
    """Return the levels of `r`, which is overwritten, by the numbers `u`, with the signs of `x`."""
    level = r.floor()
    level.add_(u < r.sub_(level)).clamp_(max=s)
    return level.mul_(x.sign()).to(code_dtype(s))


def _is_integer(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
