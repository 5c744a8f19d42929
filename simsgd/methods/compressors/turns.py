"""Send each entry in its turn, in an order drawn at random.

Letters: L workers hosted here, n elements of one segment, k of them in a turn.
"""

import math
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from ...communication.messages import SharedSparse, State
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import require
from .contract import Compressor, StepInfo

_MANY = 32768  # entries


@register("compressor", "turns")
@dataclass(frozen=True)
class Turns(Compressor):
    """All workers send the same entries, each entry once in a round of 1 / ratio steps.

    A random order of the entries is cut into ceil(1 / ratio) parts, of which one goes at every
    step: an order drawn once, or with `fresh=true` a new one for every round. Places need not be
    sent, and the values ride an all-reduce. Biased: use it with a memory, or with algorithm sparta.
    Beton, Howes, Cheema, Ho, "SPARTA: Distributed training with sparse parameter averaging", MCDC
    workshop at ICLR 2025, https://openreview.net/forum?id=stFPf3gzq1, whose code calls the two
    shuffled sequential and partitioned.
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    fresh: bool = False  # draw another order for every round
    biased = True

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "must lie in (0, 1]")

    def compress(self, x: Tensor, state: State, step: StepInfo) -> SharedSparse:
        """Return the entries of `x` [L, n] whose turn it is."""
        n = x.shape[1]
        parts = min(n, math.ceil(1 / Decimal(str(self.ratio))))
        turn, number = step.number % parts, step.number // parts if self.fresh else 0
        everyone = RandomKey(step.key.seed, step.key.workers[:1]).shared()
        key = replace(everyone, place=("turns", step.segment, number))
        rank = key.uniform(n, torch.float64)[0]  # [n]
        index = _between(rank, turn * n // parts, (turn + 1) * n // parts)  # [k]
        return SharedSparse.of(x[:, index], index, n)


def _between(rank: Tensor, first: int, last: int) -> Tensor:
    """Return where the entries number `first` to `last` - 1 in the order of `rank` [n] are.

    The result is ascending. Of equal ones the one before comes first. Of many entries the CPU finds
    the two ends without sorting all.
    """
    if rank.is_cuda or len(rank) < _MANY:
        return rank.argsort(stable=True)[first:last].sort().values
    values, end = rank.numpy(), min(last, len(rank) - 1)
    ends = np.partition(values, (first, end))
    inside = (values >= ends[first]) & ((values < ends[end]) | (end < last))
    index = np.flatnonzero(inside)
    if len(index) == last - first:
        return torch.from_numpy(index)
    return rank.argsort(stable=True)[first:last].sort().values  # two at an end are equal
