"""Collectives made of messages between two ranks each, in the order that their prices assume.

Gloo's own all-gather asks for every chunk behind the data of the last one, its broadcast is a tree,
and a gather must be of equal buffers. These take the bytes that there are, and links stay full:
see docs/network.md, where they are measured. Who receives always asks first, for a request that
waits behind data costs the time of that data.

Letters: R ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_SLICES, _SLICED = 8, 64 << 10  # parts of a message to a neighbor, if it has so many bytes
Moves = list[dist.P2POp]


@dataclass(frozen=True)
class Hops:
    """Collectives of the ranks of a `group`; None: of all processes. Ranks count within it."""

    group: Any = None

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""
        return dist.get_rank(self.group)

    @property
    def ranks(self) -> int:
        """How many there are, R."""
        return dist.get_world_size(self.group)

    def ring_all_gather(self, own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return all ranks' buffers, uint8 of `sizes` [R], for `own`: each goes on in the ring."""
        rank, ranks = self.rank, self.ranks
        parts = [own if r == rank else own.new_empty(size) for r, size in enumerate(sizes)]
        for hop in range(ranks - 1):
            going, coming = parts[(rank - hop) % ranks], parts[(rank - hop - 1) % ranks]
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            _do([*self._receive(coming, before), *self._send(going, after)])
        return parts

    def gather(self, own: Tensor, sizes: Sequence[int]) -> list[Tensor] | None:
        """Return all ranks' buffers, uint8 of `sizes` [R], on rank 0; None on the others."""
        if self.rank:
            _do(self._send(own, 0))
            return None
        parts = [own, *(own.new_empty(size) for size in sizes[1:])]
        others = [(rank, part) for rank, part in enumerate(parts) if rank]
        _do([move for rank, part in others for move in self._receive(part, rank)])
        return parts

    def scatter(self, parts: Sequence[Tensor]) -> None:
        """Put rank 0's buffers into those of the others: `parts` [R], of which each fills its own.

        All have buffers of the same sizes.
        """
        if self.rank:
            _do(self._receive(parts[self.rank], 0))
        else:
            _do([m for rank, part in enumerate(parts) if rank for m in self._send(part, rank)])

    def broadcast(self, values: Tensor) -> None:
        """Put rank 0's values, to each a copy of its own, into those of the others."""
        self.scatter([values] * self.ranks)

    def exchange(
        self, going: Mapping[int, Tensor], coming: Mapping[int, Tensor], whole: bool = False
    ) -> None:
        """Send a buffer to each rank of `going`, and fill those of `coming`, {rank: uint8}.

        Between CPUs large ones go slice by slice, each to the next rank while one from the last
        arrives, so that every link is used both ways all the time. Where each rank has one other at
        most to send to, and one to receive from, they go `whole`.
        """
        if whole or dist.get_backend(self.group) == "nccl":
            moves = [m for other, buffer in coming.items() for m in self._receive(buffer, other)]
            moves += [m for other, buffer in going.items() for m in self._send(buffer, other)]
            _do(moves)
            return
        rank, ranks = self.rank, self.ranks
        out = {other: _slices(buffer) for other, buffer in going.items()}
        arriving = {
            (other, place): _begin(self._receive(part, other, place))
            for other, buffer in coming.items()
            for place, part in enumerate(_slices(buffer))
        }
        leaving: list[dist.Work] = []
        last: list[dist.Work] = []  # to arrive: who runs ahead by one keeps the link busy
        for place in range(_SLICES):
            for offset in range(1, ranks):
                after, before = (rank + offset) % ranks, (rank - offset) % ranks
                if place < len(out.get(after, ())):
                    leaving += _begin(self._send(out[after][place], after, place))
                if (before, place) in arriving:
                    _wait(last)
                    last = arriving[before, place]
        _wait([*last, *leaving])

    def _send(self, buffer: Tensor, rank: int, tag: int = 0) -> Moves:
        return self._move(dist.isend, buffer, rank, tag)

    def _receive(self, buffer: Tensor, rank: int, tag: int = 0) -> Moves:
        return self._move(dist.irecv, buffer, rank, tag)

    def _move(self, way: Any, buffer: Tensor, rank: int, tag: int) -> Moves:
        if not buffer.numel():
            return []
        peer = rank if self.group is None else dist.get_global_rank(self.group, rank)
        return [dist.P2POp(way, buffer, peer, self.group, tag)]


def _slices(buffer: Tensor) -> Sequence[Tensor]:
    """Return a buffer in as many parts as both its ends know of; none of an empty one."""
    if not len(buffer):
        return ()
    return torch.tensor_split(buffer, _SLICES) if len(buffer) >= _SLICED else (buffer,)


def _do(moves: Moves) -> None:
    _wait(_begin(moves))


def _begin(moves: Moves) -> list[dist.Work]:
    return dist.batch_isend_irecv(moves) if moves else []


def _wait(requests: Sequence[dist.Work]) -> None:
    for request in requests:
        request.wait()
