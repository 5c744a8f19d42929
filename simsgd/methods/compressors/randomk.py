"""Send entries chosen at random.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Joined, SharedSparse, Sparse, State
from ...communication.messages.joined import shared_group, sparse_group
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import count, require
from .contract import Compressor, StepInfo
from .distinct_places import distinct, distinct_of_each
from .group import Group


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
            index = distinct(_everyone(key), n, k)[0]  # [k]
            return SharedSparse.of(x[:, index] * factor, index, n)
        index = distinct(key, n, k)  # [L, k]
        return Sparse.of(x.gather(1, index) * factor, index, n)

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return k entries of each segment of `x` [L, P]."""
        cuts = group.cuts
        kept = Cuts(tuple(count(self.ratio, n) for n in cuts.sizes))
        keys = [step.key.fold_in("places") for step in group.steps]
        if self.shared:
            index = distinct_of_each([_everyone(key) for key in keys], cuts, kept)[0]  # [K]
            return shared_group(cuts, kept, self._scaled(x[:, index], cuts, kept), index)
        index = distinct_of_each(keys, cuts, kept)  # [L, K]
        return sparse_group(cuts, kept, self._scaled(x.gather(1, index), cuts, kept), index)

    def _scaled(self, values: Tensor, cuts: Cuts, kept: Cuts) -> Tensor:
        """Return values [L, K] times n/k of their segments, if they are scaled."""
        if not self.scale:
            return values
        of_each = [n / k for n, k in zip(cuts.sizes, kept.sizes, strict=True)]
        factors = torch.tensor([of_each], dtype=torch.float64, device=values.device)
        return values * kept.spread(factors).to(values.dtype)


def _everyone(key: RandomKey) -> RandomKey:
    """Return the key by which all workers draw the same numbers, of one worker."""
    return replace(key, workers=key.workers[:1]).shared()
