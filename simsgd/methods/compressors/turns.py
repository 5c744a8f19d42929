"""Send each entry in its turn, in an order drawn at random.

Letters: L workers hosted here, n elements of one segment, k of them in a turn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from ... import keyed_random
from ...communication.cuts import Cuts
from ...communication.messages import Joined, SharedSparse, State
from ...communication.messages.joined import shared_group
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import require
from .contract import Compressor, StepInfo
from .group import Group
from .topk_selection import chosen_in_segments

_ABOUT = 4  # square roots of n that a place in the order may differ from what is expected: rare


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
        first, last = self._turn(n, step.number)
        rank = self._key(n, step).uniform(n, torch.float64)[0]  # [n]
        index = _between(rank, first, last)  # [k]
        return SharedSparse.of(x[:, index], index, n)

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return the entries of each segment of `x` [L, P] whose turn it is."""
        cuts, steps = group.cuts, group.steps
        turns = [self._turn(n, step.number) for n, step in zip(cuts.sizes, steps, strict=True)]
        keys = [self._key(n, step) for n, step in zip(cuts.sizes, steps, strict=True)]
        streams = keyed_random.stacked(keys)  # [1, S]
        place = cuts.place(streams.device)
        rank = keyed_random.uniform_at(cuts.spread(streams), place, torch.float64)[0]  # [P]
        index, kept = _between_of_each(rank, cuts, turns), _kept(turns)
        return shared_group(cuts, kept, x[:, index], index)

    def _turn(self, n: int, number: int) -> tuple[int, int]:
        """Return which of n entries go in the step of this number: from the first to the last."""
        parts = self._parts(n)
        turn = number % parts
        return turn * n // parts, (turn + 1) * n // parts

    def _parts(self, n: int) -> int:
        return min(n, math.ceil(1 / Decimal(str(self.ratio))))

    def _key(self, n: int, step: StepInfo) -> RandomKey:
        """Return the key of the round's order, one for all workers."""
        number = step.number // self._parts(n) if self.fresh else 0
        everyone = RandomKey(step.key.seed, step.key.workers[:1]).shared()
        return replace(everyone, place=("turns", step.segment, number))


def _between(rank: Tensor, first: int, last: int) -> Tensor:
    """Return where the entries number `first` to `last` - 1 in the order of `rank` [n] are.

    The result is ascending. Of equal ones the one before comes first. The CPU sorts only those near
    where numbers drawn evenly from [0, 1) should be, or all if these are not among them.
    """
    if not rank.is_cuda:
        n, values = len(rank), rank.numpy()
        about = _ABOUT / math.sqrt(n)
        least, most = first / n - about, last / n + about
        near = np.flatnonzero((values >= least) & (values < most))
        begin, k = first - np.count_nonzero(values < least), last - first
        if begin >= 0 and begin + k <= len(near):
            order = np.argsort(values[near], kind="stable")[begin : begin + k]
            return torch.from_numpy(np.sort(near[order]))
    return rank.argsort(stable=True)[first:last].sort().values


def _between_of_each(rank: Tensor, cuts: Cuts, turns: Sequence[tuple[int, int]]) -> Tensor:
    """Return the same of each segment of `rank` [P], counted among all P; ascending."""
    if not rank.is_cuda:
        pieces = zip(cuts.split(rank[None]), turns, strict=True)
        index = torch.cat([_between(own[0], *turn) for own, turn in pieces])
        return index.add_(cuts.begin(_kept(turns), index.device))
    return sorted_in_segments(rank, cuts, turns)


def sorted_in_segments(rank: Tensor, cuts: Cuts, turns: Sequence[tuple[int, int]]) -> Tensor:
    """Return the same from two sorts of all entries: by rank, then by segment."""
    kept = _kept(turns)
    firsts = kept.repeated(tuple(first for first, _ in turns), rank.device)
    order = rank.argsort(stable=True).unsqueeze(0)
    return chosen_in_segments(order, cuts, kept, firsts + kept.place(rank.device))[0]


def _kept(turns: Sequence[tuple[int, int]]) -> Cuts:
    return Cuts(tuple(last - first for first, last in turns))
