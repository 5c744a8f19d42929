"""Where segments lie in rows that hold them end to end.

Letters: L workers hosted here, S segments, n elements of one of them, P of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Cuts:
    """The lengths of S segments in a row of P elements."""

    sizes: tuple[int, ...]  # n of each segment

    @cached_property
    def total(self) -> int:
        """P."""
        return sum(self.sizes)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Where each segment begins."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def begin(self, kept: "Cuts", device: torch.device) -> Tensor:
        """Return where the segment begins to which each of `kept` entries belongs, [K] int64."""
        return _repeated(self.begins, kept.sizes, device)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the segments [..., n] of `rows` [..., P], views of it."""
        pieces: tuple[Tensor, ...] = rows.split(self.sizes, dim=-1)
        return pieces

    def owner(self, device: torch.device) -> Tensor:
        """Return the segment of each element, [P] int64."""
        return _owner(self.sizes, device)

    def place(self, device: torch.device) -> Tensor:
        """Return the place of each element in its segment, [P] int64."""
        return _place(self.sizes, device)

    def lengths(self, device: torch.device) -> Tensor:
        """Return for each element the length of its segment, [P] int64."""
        return _repeated(self.sizes, self.sizes, device)

    def repeated(self, numbers: tuple[int, ...], device: torch.device) -> Tensor:
        """Return for each element its segment's of S numbers, [P] int64."""
        return _repeated(numbers, self.sizes, device)

    def edges(self, device: torch.device) -> Tensor:
        """Return where each segment begins, and where the last one ends, [S + 1] int64."""
        return _edges(self.sizes, device)

    def spread(self, numbers: Tensor) -> Tensor:
        """Return for each element its segment's of `numbers` [L, S], [L, P]."""
        return numbers.index_select(1, self.owner(numbers.device))

    def until(self, running: Tensor) -> Tensor:
        """Return what sums from the left, `running` [L, P], are at all edges, [L, S + 1]."""
        return pad(running, (1, 0)).index_select(1, self.edges(running.device))

    def counts(self, mask: Tensor) -> Tensor:
        """Return how many elements of each segment are true in `mask` [L, P], [L, S] int32."""
        return self.until(mask.cumsum(1, dtype=torch.int32)).diff(dim=1)


def end_to_end(pieces: Sequence[Tensor]) -> Tensor:
    """Return pieces [L, n] as one [L, P]: a view where they lie so in memory, else a copy."""
    joined = adjacent(pieces)
    return torch.cat(list(pieces), dim=1) if joined is None else joined


def adjacent(pieces: Sequence[Tensor]) -> Tensor | None:
    """Return the view [L, P] of pieces [L, n] that lie end to end in memory, None if they do not.

    All have elements.
    """
    first = pieces[0]
    memory, begin, step = (
        first.untyped_storage().data_ptr(),
        first.storage_offset(),
        first.stride(0),
    )
    end = begin
    for piece in pieces:
        rows = len(piece) == 1 or piece.stride(0) == step
        columns = piece.shape[1] == 1 or piece.stride(1) == 1
        own = piece.storage_offset() == end and piece.untyped_storage().data_ptr() == memory
        if not (rows and columns and own and piece.dtype == first.dtype):
            return None
        end += piece.shape[1]
    if len(first) > 1 and step < end - begin:
        return None
    return first.as_strided((len(first), end - begin), (max(step, end - begin), 1), begin)


@lru_cache(maxsize=256)
def numbers(each: tuple[int, ...] | tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Return numbers as int64 on a device, where they are kept: to copy them is to wait."""
    return torch.tensor(each, device=device)


@lru_cache(maxsize=256)
def _owner(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(device)


@lru_cache(maxsize=256)
def _repeated(numbers: tuple[int, ...], times: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers).repeat_interleave(torch.tensor(times)).to(device)


@lru_cache(maxsize=256)
def _edges(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([*accumulate(sizes, initial=0)], device=device)


@lru_cache(maxsize=256)
def _place(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(n, device=device) for n in sizes])
