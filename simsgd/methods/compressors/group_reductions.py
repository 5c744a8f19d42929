"""Sums along the segments of a group, all at once, as `row_reductions.py` has them of one.

Each segment is cut into blocks, the last one filled with zeros; blocks are added in the same fixed
tree, and so are their sums. So a segment has the same sum to the last bit as by itself.

Letters: L workers hosted here, S segments, n elements of one of them, P of all, B blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...communication.cuts import Cuts
from .row_reductions import BLOCK, mean_of, row_peak, row_sum, unit_of


@dataclass(frozen=True)
class GroupReductions:
    """Reductions of `x` [L, P] to one number a segment, [L, S]."""

    cuts: Cuts

    def entries(self, like: Tensor) -> Tensor:
        """Return n of each segment, [1, S], in the dtype of `like`."""
        return _entries(self.cuts.sizes, like.dtype, like.device)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sums."""
        sums = row_sum(self._blocks(x)).squeeze(2)  # [L, B]
        return row_sum(self._by_segment(sums)).squeeze(2)

    def peak(self, x: Tensor) -> Tensor:
        """Return the largest magnitudes."""
        peaks = row_peak(self._blocks(x)).squeeze(2)  # [L, B]
        return self._by_segment(peaks).amax(2)

    def norm(self, x: Tensor) -> Tensor:
        """Return the Euclidean norms."""
        unit = unit_of(self.peak(x))
        return self.sum((x / self.cuts.spread(unit)).square_()).sqrt_() * unit

    def std(self, x: Tensor) -> Tensor:
        """Return the population standard deviations."""
        unit, entries = unit_of(self.peak(x)), self.entries(x)
        off = x / self.cuts.spread(unit)
        off.sub_(self.cuts.spread(self.sum(off) / entries))
        return (self.sum(off.square_()) / entries).sqrt_() * unit

    def mean_magnitude(self, x: Tensor) -> Tensor:
        """Return the means of the magnitudes."""
        return self._mean(x.abs(), self.entries(x))

    def mean_by_sign(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean magnitude of the negative entries, and that of the others."""
        below = self.sum((x < 0).to(x.dtype))
        least = self._mean(x.clamp(max=0).neg_(), below)
        return least, self._mean(x.clamp(min=0), self.entries(x) - below)

    def _mean(self, size: Tensor, entries: Tensor) -> Tensor:
        """Return the means of magnitudes `size` [L, P] over so many entries of each segment."""
        peak = self.peak(size)
        return mean_of(self.sum(size / self.cuts.spread(unit_of(peak))), peak, entries)

    def _blocks(self, x: Tensor) -> Tensor:
        """Return the blocks of all segments, with zeros behind the last entry, [L, B, block]."""
        size, column, num_blocks, _, _ = _places(self.cuts.sizes, x.device)
        padded = x.new_zeros(len(x), num_blocks * size)
        return padded.index_copy_(1, column, x).view(len(x), num_blocks, size)

    def _by_segment(self, numbers: Tensor) -> Tensor:
        """Return numbers of blocks [L, B] as [L, S, most blocks], with zeros behind."""
        _, _, num_blocks, place, most = _places(self.cuts.sizes, numbers.device)
        segments = len(self.cuts.sizes)
        if num_blocks == segments:
            return numbers.unsqueeze(2)
        padded = numbers.new_zeros(len(numbers), segments * most)
        return padded.index_copy_(1, place, numbers).view(len(numbers), segments, most)


def buckets_of_group(x: Tensor, cuts: Cuts, size: int) -> Tensor:
    """Return `x` [L, P] in buckets of each segment, [L, buckets, size], with zeros at its end."""
    column, num_buckets = _bucket_columns(cuts.sizes, size, x.device)
    padded = x.new_zeros(len(x), num_buckets * size)
    return padded.index_copy_(1, column, x).view(len(x), num_buckets, size)


@lru_cache(maxsize=64)
def bucket_sizes(sizes: tuple[int, ...], buckets: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many entries each bucket of each segment has, whose `buckets` are of so many."""
    pairs = zip(sizes, buckets, strict=True)
    return tuple(min(most, n - first) for n, most in pairs for first in range(0, n, most))


@lru_cache(maxsize=64)
def _bucket_columns(sizes: tuple[int, ...], size: int, device: torch.device) -> tuple[Tensor, int]:
    column = torch.cat(padded_columns(sizes, size))
    return column.to(device), sum(-(-n // size) for n in sizes)


def padded_columns(sizes: Sequence[int], unit: int) -> list[Tensor]:
    """Return where the elements of each segment lie if each is filled up to whole units."""
    begin, columns = 0, []
    for n in sizes:
        columns.append(torch.arange(begin, begin + n))
        begin += -(-n // unit) * unit
    return columns


@lru_cache(maxsize=64)
def _places(sizes: tuple[int, ...], device: torch.device) -> tuple[int, Tensor, int, Tensor, int]:
    """Return the size of a block, where elements go, B, where blocks go, most in a segment."""
    size = min(BLOCK, 1 << (max(sizes) - 1).bit_length())
    column = torch.cat(padded_columns(sizes, size))
    blocks = [-(-n // size) for n in sizes]
    most = max(blocks)
    place = torch.cat([torch.arange(own) + number * most for number, own in enumerate(blocks)])
    return size, column.to(device), sum(blocks), place.to(device), most


@lru_cache(maxsize=64)
def _entries(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([sizes], dtype=dtype, device=device)
