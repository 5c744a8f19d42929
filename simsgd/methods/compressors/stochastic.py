"""Send each entry rounded at random, so that its mean is right.

Letters: L workers hosted here, n elements of one segment, k of them given, s levels, u uniform
in [0, 1).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...communication.messages import Levels, Powers, State, Ternary
from ...communication.messages.levels import code_dtype
from ...communication.messages.powers_of_two import LEAST, MOST, NEGATIVE
from ...registry import register
from ...settings import require
from .contract import Quantizer, StepInfo
from .row_reductions import as_float32, entries_of, row_norm, row_peak, row_std

_MOST_LEVELS = 1 << 22  # as far as float32 tells a level from the next


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
        clips = self.clip is None or self.clip > 0
        require(clips, "clip", self.clip, "must be above 0, or none")
        require(isinstance(self.shared_scale, bool), "shared_scale", self.shared_scale, _BOOL)
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
        return self._scale(self._clipped(x, None))

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Ternary:
        """Return -1, 0 or 1 for each of `values` [L, k], and the scale."""
        clipped = self._clipped(values, counts)
        scale = self._scale(clipped)  # [L, 1]
        if self.shared_scale:
            assert step.global_max is not None
            scale = step.global_max  # [1, 1]
        u = step.key.uniform(values.shape[1], values.dtype)  # [L, k]
        chosen = u.mul_(scale.to(values.dtype)) < clipped.abs()
        codes = clipped.sign().to(torch.int8).mul_(chosen)
        if self.shared_scale:
            nothing = scale.new_empty(len(values), 0)
            return Ternary(codes, nothing, values.dtype, counts, self.pack, shared=scale)
        return Ternary(codes, scale, values.dtype, counts, self.pack)

    def _clipped(self, values: Tensor, counts: Tensor | None) -> Tensor:
        if self.clip is None:
            return values
        entries = entries_of(values, counts)
        bound = self.clip * row_std(values, entries)
        bound = torch.where(entries < 2, torch.inf, bound)  # [L, 1]
        return values.clamp(-bound, bound)

    def _scale(self, clipped: Tensor) -> Tensor:
        return as_float32(row_peak(clipped))


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
        fits = _whole(self.levels) and 1 <= self.levels <= _MOST_LEVELS
        rule = f"must be a whole number from 1 to {_MOST_LEVELS}"
        require(fits, "levels", self.levels, rule)
        bucketed = self.bucket is None or (_whole(self.bucket) and self.bucket >= 1)
        require(bucketed, "bucket", self.bucket, "must be a whole number from 1, or none")
        require(self.norm in ("l2", "max"), "norm", self.norm, "must be l2 or max")
        require(isinstance(self.biased, bool), "biased", self.biased, _BOOL)
        require(self.code in ("fixed", "elias"), "code", self.code, "must be fixed or elias")

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Levels:
        """Return the level of each of `values` [L, k], and the norm of each bucket."""
        k = values.shape[1]
        x = _bucketed(values, self.bucket)  # [L, buckets, size]
        norm = as_float32(row_norm(x) if self.norm == "l2" else row_peak(x))  # [L, buckets, 1]
        whole = norm.to(x.dtype)
        r = x.abs().div_(torch.where(whole > 0, whole, 1.0)).mul_(self.levels)
        level = r.floor()
        u = step.key.uniform(x.shape[1] * x.shape[2], x.dtype).view_as(x)
        level.add_(u < r.sub_(level)).clamp_(max=self.levels)
        codes = level.mul_(x.sign()).to(code_dtype(self.levels)).flatten(1)[:, :k]
        if self.biased:
            norm = (norm / (1 + self._variance(values, counts, x))).float()
        scales = norm.squeeze(2)
        return Levels(
            codes, scales, values.dtype, counts, self.levels, self.bucket, coding=self.code
        )

    def _variance(self, values: Tensor, counts: Tensor | None, x: Tensor) -> Tensor:
        """Return w of each bucket, [L, buckets, 1]."""
        _, buckets, size = x.shape
        first = torch.arange(buckets, device=x.device) * size
        n = (entries_of(values, counts) - first).clamp(0, size).unsqueeze(2)
        s = torch.full_like(n, self.levels)
        return torch.minimum(n / s**2, n.sqrt() / s)


@register("compressor", "natural")
@dataclass(frozen=True)
class Natural(Quantizer):
    """Each worker sends each entry as a power of two, one of the two beside it at random.

    C(x) = sign(x) 2^e (1 + (u < |x| / 2^e - 1)), e = floor(log2 |x|). Unbiased, with
    E||C(x) - x||^2 <= 1/8 ||x||^2. 1 byte an entry: a sign and 7 bits for 2^-108 to 2^18 and 0.
    Magnitudes above 2^18 arrive as 2^18, and a memory keeps the rest; those below 2^-108,
    subnormal numbers among them, arrive as 2^-108 or 0, unbiased still.
    Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022,
    https://arxiv.org/abs/1905.10988.

    Differs from the paper: 7 bits of exponent in place of 8, so that an entry takes a byte.
    """

    biased = False

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Powers:
        """Return the power of two for each of `values` [L, k]."""
        size = values.abs()
        u = step.key.uniform(values.shape[1], values.dtype)  # [L, k]
        mantissa, exponent = torch.frexp(size)  # size = 2 mantissa * 2^(exponent - 1)
        up = u < 2 * mantissa - 1
        codes = (exponent - LEAST).add_(up).clamp_(1, 1 + MOST - LEAST)
        small = size < 2.0**LEAST
        codes = torch.where(small, (u * 2.0**LEAST < size).int(), codes)
        codes.add_((values < 0).int() * NEGATIVE)
        scales = torch.empty(len(values), 0, device=values.device)
        return Powers(codes.to(torch.uint8), scales, values.dtype, counts)


_BOOL = "must be true or false"


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _bucketed(values: Tensor, bucket: int | None) -> Tensor:
    """Return values [L, k] as [L, buckets, size], with zeros behind the last."""
    k = values.shape[1]
    if bucket is None or bucket >= k:
        return values.unsqueeze(1)
    buckets = -(-k // bucket)
    return F.pad(values, (0, buckets * bucket - k)).view(len(values), buckets, bucket)
