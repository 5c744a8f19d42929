"""Send about the largest entries, selected by a sample.

Letters: L workers hosted here, n elements of one segment, k aimed at.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.cuts import Cuts, numbers
from ...communication.messages import Joined, Sparse, State
from ...communication.messages.joined import marked_group
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError, count, require
from .contract import Compressor, StepInfo
from .group import Group
from .topk_selection import chosen_in_segments


@register("compressor", "sampled_topk")
@dataclass(frozen=True)
class SampledTopK(Compressor):
    """Each worker sends about k entries, the largest by an estimate that looks at few of them.

    k = max(1, ceil(ratio * n)). The least magnitude of the top `ratio` of a sample is the bar. If
    fewer than lower * k entries reach it, it is multiplied by `lower`, `iters` times at most; if
    more than k do, the k largest of those are sent. So a row sends k entries or somewhat fewer,
    none of them zero, and whatever it sends is larger than what it does not. A segment too small
    for sampling is searched whole. Several times faster than `topk` for large segments.
    Biased: use it with a memory.
    Lin et al., "Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887, section 4
    (hierarchical selection); sizes and bounds of its public code.

    Differs from the public code: where too many entries reach the bar the largest of them are
    kept, not the first by index. So `resample`, a second selection where more than upper * k
    entries reach the bar, is what happens in any case; without it the bar is raised before.
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    sample_ratio: float = 0.01  # least fraction of entries looked at, in (0, 1]
    upper: float = 1.3  # above upper * k entries the bar is raised, unless resample; over 1
    lower: float = 0.8  # below lower * k entries the bar is lowered, in (0, 1)
    iters: int = 10  # most times the bar is moved, 0 or more
    resample: bool = True  # never raise the bar: select among those that reach it
    strided: bool = True  # sample at even distances from a random start; else at random
    biased = True

    def __post_init__(self) -> None:
        for name in ("ratio", "sample_ratio"):
            value = getattr(self, name)
            require(0 < value <= 1, name, value, "must lie in (0, 1]")
        require(self.upper > 1, "upper", self.upper, "must be greater than 1")
        require(0 < self.lower < 1, "lower", self.lower, "must lie in (0, 1)")
        for name in ("resample", "strided"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "must be true or false")
        if not (isinstance(self.iters, int) and self.iters >= 0):
            raise SettingError("iters", self.iters, "must be a whole number of at least 0")

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse:
        """Return about the k largest entries of each row of `x` [L, n]."""
        k = count(self.ratio, x.shape[1])
        bar = self._estimated(x, step.key)  # [L, 1]
        found = Sparse.where(_reaches(x, bar), x)
        for _ in range(self.iters):
            assert found.counts is not None
            limits = numbers((self._limits(k),), x.device)
            factor = self._correction(found.counts.unsqueeze(1), limits, bar)  # [L, 1]
            if bool((factor == 1).all()):
                break
            bar = (bar * factor).clamp_(min=_least_positive(x))
            found = Sparse.where(_reaches(x, bar), x)
        return _at_most(found, k)

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return about the k largest entries of each segment of `x` [L, P].

        All bars are moved `iters` times, by 1 where they stay, for to stop would be to wait.
        """
        cuts, size = group.cuts, x.abs()
        kept = Cuts(tuple(count(self.ratio, n) for n in cuts.sizes))
        limits = numbers(tuple(self._limits(k) for k in kept.sizes), x.device)  # [S, 2]
        bar = self._estimated_of_group(size, group)  # [L, S]
        for _ in range(self.iters):
            entries = cuts.counts(size >= cuts.spread(bar))
            bar = (bar * self._correction(entries, limits, bar)).clamp_(min=_least_positive(x))
        return marked_group(cuts, size >= cuts.spread(bar), x, most=kept)

    def _estimated(self, x: Tensor, key: RandomKey) -> Tensor:
        """Return the least magnitude of the top of a sample of each row, [L, 1], not 0."""
        samples, stride = sampling(x.shape[1], self.ratio, self.sample_ratio)
        sample = x if stride == 1 else x.gather(1, self._looked_at(x, key))
        top = sample.abs().topk(count(self.ratio, samples), dim=1, sorted=False).values
        return top.amin(1, keepdim=True).clamp_(min=_least_positive(x))

    def _estimated_of_group(self, size: Tensor, group: Group) -> Tensor:
        """Return the same of each segment of magnitudes `size` [L, P], [L, S]."""
        cuts, device = group.cuts, size.device
        looks = [sampling(n, self.ratio, self.sample_ratio) for n in cuts.sizes]
        samples, strides = (tuple(own) for own in zip(*looks, strict=True))
        sampled, each = Cuts(samples), Cuts((1,) * len(samples))
        stride, place = sampled.repeated(strides, device), sampled.place(device)
        float64 = size.new_empty(0, dtype=torch.float64)
        if self.strided:
            u = group.of(each, "sample").uniform(float64)  # [L, S]
            start = (u * numbers(strides, device)).long()
            place = sampled.spread(start) + stride * place
        else:
            u = group.of(sampled, "sample").uniform(float64)  # [L, M], of M sampled
            drawn = (u * sampled.repeated(cuts.sizes, device)).long()
            place = torch.where(stride == 1, place, drawn)
        sample = size.gather(1, cuts.begin(sampled, device) + place)
        order = sample.sort(dim=1, descending=True, stable=True).indices
        last = numbers(tuple(count(self.ratio, n) - 1 for n in samples), device)
        least = sample.gather(1, chosen_in_segments(order, sampled, each, last))
        return least.clamp_(min=_least_positive(size))

    def _looked_at(self, x: Tensor, key: RandomKey) -> Tensor:
        n = x.shape[1]
        samples, stride = sampling(n, self.ratio, self.sample_ratio)
        key = key.fold_in("sample")
        if not self.strided:
            return (key.uniform(samples, torch.float64) * n).long()  # [L, samples]
        start = (key.uniform(1, torch.float64) * stride).long()  # [L, 1]
        return start + stride * torch.arange(samples, device=x.device)

    def _limits(self, k: int) -> tuple[int, int]:
        """Return between how many entries the bar is left where it is."""
        return count(self.lower, k), math.floor(Fraction(str(self.upper)) * k)

    def _correction(self, entries: Tensor, limits: Tensor, bar: Tensor) -> Tensor:
        """Return by what each `bar` [L, S] is to be multiplied, which so many `entries` reach.

        `limits` [S, 2] are those of each segment.
        """
        fewest, most = limits.unbind(1)
        too_few = (entries < fewest) & (bar > _least_positive(bar))
        factor = torch.ones_like(bar).masked_fill_(too_few, self.lower)
        return factor if self.resample else factor.masked_fill_(entries > most, self.upper)


def sampling(n: int, ratio: float, sample_ratio: float) -> tuple[int, int]:
    """Return how many of `n` entries are looked at, and how far apart: (n, 1) for all.

    They are at least `sample_ratio` of all, and at least 2 / ratio, so that their top `ratio` is
    not decided by one of them. The distance is 1 modulo 8, lest it meets the rows of a matrix.

    >>> sampling(100_000, 0.001, 0.01), sampling(2000, 0.001, 0.01)
    ((2040, 49), (2000, 1))
    """
    least = max(count(sample_ratio, n), math.ceil(2 / Fraction(str(ratio))))
    if n <= math.ceil(2 / Fraction(str(ratio))):
        return n, 1
    stride = math.ceil(Fraction(n, least) / 32) * 32 + 1
    while n // stride < least:
        stride -= 8
    return n // stride, stride


def _reaches(x: Tensor, bar: Tensor) -> Tensor:
    if compiled_loops.takes(x):
        from .bar_kernels import reaching

        return reaching(x, bar, x.shape[1])
    return x.ge(bar).logical_or_(x.le(-bar))  # |x| >= bar, in less memory traffic


def _at_most(found: Sparse, k: int) -> Sparse:
    """Return the k largest of the entries found in each row, none of which is 0.

    Of equal magnitudes the lowest index goes.
    """
    if found.index.shape[1] <= k:
        return found
    assert found.counts is not None
    order = found.values.abs().sort(dim=1, descending=True, stable=True).indices  # padding last
    kept = order[:, :k].sort(dim=1).values  # [L, k]
    values, index = found.values.gather(1, kept), found.index.gather(1, kept)
    return Sparse.of(values, index, found.n, found.counts.clamp(max=k))


def _least_positive(like: Tensor) -> float:
    info = torch.finfo(like.dtype)
    return info.smallest_normal * info.eps
