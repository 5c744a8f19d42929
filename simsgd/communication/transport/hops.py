"""Collectives made of messages between two ranks each, in the order that their prices assume.

Gloo's own all-gather asks for every chunk behind the data of the last one, its broadcast is a tree,
and a gather must be of equal buffers. These take the bytes that there are, and links stay full:
see docs/network.md, where they are measured. Who receives always asks first, for a request that
waits behind data costs the time of that data.

Letters: R ranks.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_SLICES, _SLICED = 8, 64 << 10  # parts of a message to a neighbor, if it has so many bytes
Moves = list[dist.P2POp]


def ring_all_gather(own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return all ranks' buffers, uint8 of `sizes` [R], for `own`: each goes on around the ring."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [own if r == rank else own.new_empty(size) for r, size in enumerate(sizes)]
    for hop in range(ranks - 1):
        going, coming = parts[(rank - hop) % ranks], parts[(rank - hop - 1) % ranks]
        _do([*_receive(coming, (rank - 1) % ranks), *_send(going, (rank + 1) % ranks)])
    return parts


def gather(own: Tensor, sizes: Sequence[int]) -> list[Tensor] | None:
    """Return all ranks' buffers, uint8 of `sizes` [R], on rank 0; None on the others."""
    if dist.get_rank():
        _do(_send(own, 0))
        return None
    parts = [own, *(own.new_empty(size) for size in sizes[1:])]
    _do([move for rank, part in enumerate(parts) if rank for move in _receive(part, rank)])
    return parts


def broadcast(values: Tensor) -> None:
    """Put rank 0's values, to each a copy of its own, into those of the others."""
    if dist.get_rank():
        _do(_receive(values, 0))
    else:
        _do([move for rank in range(1, dist.get_world_size()) for move in _send(values, rank)])


def exchange(going: Mapping[int, Tensor], coming: Mapping[int, Tensor]) -> None:
    """Send a buffer to each rank of `going`, and fill those of `coming`, {rank: uint8}.

    Between CPUs large ones go slice by slice, each to the next rank while one from the last
    arrives, so that every link is used both ways all the time.
    """
    if dist.get_backend() == "nccl":
        receives = [move for other, buffer in coming.items() for move in _receive(buffer, other)]
        _do(receives + [move for other, buffer in going.items() for move in _send(buffer, other)])
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    out = {other: _slices(buffer) for other, buffer in going.items()}
    arriving = {
        (other, place): _begin(_receive(part, other, place))
        for other, buffer in coming.items()
        for place, part in enumerate(_slices(buffer))
    }
    leaving: list[dist.Work] = []
    last: list[dist.Work] = []  # to arrive: who runs ahead by one keeps the link busy
    for place in range(_SLICES):
        for offset in range(1, ranks):
            after, before = (rank + offset) % ranks, (rank - offset) % ranks
            if place < len(out.get(after, ())):
                leaving += _begin(_send(out[after][place], after, place))
            if (before, place) in arriving:
                _wait(last)
                last = arriving[before, place]
    _wait([*last, *leaving])


def _slices(buffer: Tensor) -> Sequence[Tensor]:
    """Return a buffer in as many parts as both its ends know of; none of an empty one."""
    if not len(buffer):
        return ()
    return torch.tensor_split(buffer, _SLICES) if len(buffer) >= _SLICED else (buffer,)


def _send(buffer: Tensor, rank: int, tag: int = 0) -> Moves:
    return [dist.P2POp(dist.isend, buffer, rank, tag=tag)] if buffer.numel() else []


def _receive(buffer: Tensor, rank: int, tag: int = 0) -> Moves:
    return [dist.P2POp(dist.irecv, buffer, rank, tag=tag)] if buffer.numel() else []


def _do(moves: Moves) -> None:
    _wait(_begin(moves))


def _begin(moves: Moves) -> list[dist.Work]:
    return dist.batch_isend_irecv(moves) if moves else []


def _wait(requests: Sequence[dist.Work]) -> None:
    for request in requests:
        request.wait()
