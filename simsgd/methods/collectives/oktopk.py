"""The k largest entries of a sum, each worker adding up those of its own region.

Letters: W workers, L hosted here, n elements of one segment, k kept, c of a region.
"""

import math

import torch
from torch import Tensor

from ...communication.messages import Message, Sparse
from ...communication.segments import Segment
from ...communication.transport import Channel
from ..compressors.topk_selection import largest
from .accepted import Accepted, selected
from .gtopk import largest_of_sum

_MIX = 2654435761  # 2^32 over the golden ratio: spreads neighboring places over the regions


def oktopk(message: Sparse, segment: Segment, channel: Channel) -> tuple[Message, Tensor]:
    """Send about k entries to those who add them up, and about k of the sums to all.

    Each place belongs to the region of one worker. In round r worker w sends w + r what it has in
    that region. Then each worker sends all others the c largest sums of its region, and all keep
    the k largest of these. A worker's entry is accepted if its place is among them, whole. So a
    worker receives less than 6 k words of 4 bytes, whatever W is.
    Li, Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022.

    Differs from the paper: regions are made by a hash, in place of boundaries that all agree on
    every 64 steps, and c leaves room for what a region may have more than k / W, in place of a
    threshold that is estimated every 32 steps. No step costs more than the others.
    """
    workers = channel.ledger.workers
    own = message.on_wire(channel.wire)
    k = own.index.shape[1]
    regions = region(own.index, workers)  # [L, k]
    hosted = torch.arange(workers, device=own.index.device)[channel.hosted].unsqueeze(1)  # [L, 1]
    sums = selected(own, regions == hosted).to_dense()  # [L, n]
    handed_over = torch.zeros_like(own.payload_bytes())
    for offset in range(1, workers):
        going = selected(own, regions == (hosted + offset) % workers)
        sources = [(w - offset) % workers for w in range(workers)]
        sums += channel.pass_on(going, segment, sources).to_dense()
        handed_over = handed_over + going.payload_bytes()
    index = largest(sums, of_region(k, workers, own.n))
    best = Sparse.of(sums.gather(1, index), index, own.n)
    best = selected(best, best.values != 0)
    sent, mean = channel.all_reduce_mean(best, segment)
    kept, among = largest_of_sum(mean, k)
    handed_over = handed_over + sent.payload_bytes()
    return Accepted.part(own, among[own.index], handed_over), kept


def region(place: Tensor, workers: int) -> Tensor:
    """Return to whose region places belong, int64."""
    return (place * _MIX % (1 << 32)) * workers >> 32


def of_region(k: int, workers: int, n: int) -> int:
    """Return how many sums of a region are sent, c: four deviations above k / W."""
    return min(n, k, -(-k // workers) + 4 * (math.isqrt(k // workers) + 1))
