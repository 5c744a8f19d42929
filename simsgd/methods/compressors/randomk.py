"""Send entries chosen at random.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...communication.messages import SharedSparse, Sparse, State
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import count, require
from .contract import Compressor, StepInfo
from .topk_selection import largest


@register("compressor", "randomk")
@dataclass(frozen=True)
class RandomK(Compressor):
    """Each worker sends k entries chosen at random, all different.

    k = max(1, ceil(ratio * n)), counted in decimal. As it is, C(x) = x where chosen and 0 where
    not: biased, with E||C(x) - x||^2 = (1 - k/n) ||x||^2; use it with a memory. Scaled, C(x) =
    n/k x where chosen: unbiased, with E||C(x) - x||^2 = (n/k - 1) ||x||^2; use it without one.
    Shared, all workers choose the same entries, so that places need not be sent and the values
    ride an all-reduce.
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
    https://arxiv.org/abs/1809.07599; Wangni et al., "Gradient Sparsification for
    Communication-Efficient Distributed Optimization", NeurIPS 2018 (the scaled form).
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    shared: bool = False  # one choice for all workers, whose places are not sent
    scale: bool = False  # multiply by n/k, for an unbiased message

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "must lie in (0, 1]")

        for name in ("shared", "scale"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "must be true or false")

    @property
    def biased(self) -> bool:
        """Whether values go unscaled."""
        return not self.scale

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Sparse | SharedSparse:
        """Return k entries of each row of `x` [L, n]."""
        n = x.shape[1]
        k = count(self.ratio, n)
        factor = n / k if self.scale else 1.0
        key = step.key.fold_in("places")
        if self.shared:
            everyone = key.shared()
            index = distinct(replace(everyone, workers=everyone.workers[:1]), n, k)[0]  # [k]
            return SharedSparse.of(x[:, index] * factor, index, n)
        index = distinct(key, n, k)  # [L, k]
        return Sparse.of(x.gather(1, index) * factor, index, n)


def distinct(key: RandomKey, n: int, k: int) -> Tensor:
    """Return k different places among n for each worker, all sets equally likely, [L, k] ascending.

    Few of many are the first k different numbers that the worker draws; how many are drawn at once
    does not matter. Else each place draws a lot, and the k largest lots win.
    """
    if 4 * k > n:
        return largest(key.uniform(n, torch.float64), k)
    drawn = k + k * k // n + 6 * math.isqrt(k) + 8  # nearly always enough
    while True:
        place = (key.uniform(drawn, torch.float64) * n).long()  # [L, drawn]
        ordered, turn = place.sort(dim=1, stable=True)
        again = ordered.diff(dim=1, prepend=ordered.new_full((len(ordered), 1), -1)) == 0
        turn = turn.masked_fill_(again, drawn).sort(dim=1).values[:, :k]  # [L, k]
        if bool((turn < drawn).all()):
            return place.gather(1, turn).sort(dim=1).values
        drawn *= 2
