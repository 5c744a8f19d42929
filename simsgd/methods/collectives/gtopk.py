"""The k largest entries of a sum, merged in pairs of workers.

Letters: W workers, L hosted here, n elements of one segment, k kept.
"""

import torch
from torch import Tensor

from ...communication.messages import Dense, Message, Sparse
from ...communication.segments import Segment
from ...communication.transport import Channel
from ..compressors.topk_selection import largest
from .accepted import Accepted


def gtopk(message: Sparse, segment: Segment, channel: Channel) -> tuple[Message, Tensor]:
    """Send k entries in each of log2 W rounds; return what was accepted, and the mean, [n].

    In round r workers w and w xor 2^r send each other what they have, add the two up, and keep the
    k entries of largest magnitude. All end with the same. An entry of a worker's own is in it if
    every merge of its group kept its place; else its memory keeps it.

    Of another W the P = 2^p first do so. Before, worker P + i sends what it has to worker i, and
    after each merge it is sent what worker i has by then, beside the next exchange: it sees every
    merge, and receives no more than worker i. That takes two rounds more.
    Shi, Wang, Zhao, Tang, Wang, Tang, Chu, "A Distributed Synchronous SGD Algorithm with Global
    Top-k Sparsification for Low Bandwidth Networks", ICDCS 2019.

    Differs from the paper: each round is an exchange, so that nothing has to be broadcast; a place
    that a merge dropped and another group brought back counts as rejected for who lost it; and the
    paper has powers of 2 alone. Others are as in Thakur, Rabenseifner, Gropp, IJHPCA 2005, whose
    extra workers wait for the end.
    """
    workers = channel.ledger.workers
    own = current = message.on_wire(channel.wire)
    alive = torch.ones_like(own.index, dtype=torch.bool)  # [L, k]
    handed_over = torch.zeros_like(own.payload_bytes())
    for sources in rounds_of(workers):
        arrived = channel.pass_on(current, segment, sources)
        copies = [sum(s == w != to for to, s in enumerate(sources)) for w in range(workers)]
        hosted = torch.tensor(copies, device=alive.device)[channel.hosted]
        handed_over = handed_over + current.payload_bytes() * hosted
        current = _after(current, arrived, sources, channel)
        alive &= _holds(current.index, own.index)
    mean = current.to_dense()[0].div_(workers)
    return Accepted.part(own, alive, handed_over), mean


def rounds_of(workers: int) -> list[list[int]]:
    """Return whom each of W workers receives from in each round, itself if from nobody.

    >>> rounds_of(4)
    [[1, 0, 3, 2], [2, 3, 0, 1]]
    >>> rounds_of(3)
    [[2, 1, 2], [1, 0, 0], [0, 1, 0]]
    """
    depth = workers.bit_length() - 1
    pairs = 1 << depth  # P
    others = list(range(workers - pairs))  # whose partners are P + i
    merges = [[w ^ 1 << bit for w in range(pairs)] + others for bit in range(depth)]
    if not others:
        return merges
    alone = list(range(workers))
    return [
        [w + pairs if w < len(others) else w for w in alone],
        *merges,
        [*alone[:pairs], *others],
    ]


def _after(current: Sparse, arrived: Sparse, sources: list[int], channel: Channel) -> Sparse:
    """Return what hosted workers have after a round: the merge, what they are told, or as before.

    Those beyond the largest power of 2 are told; places ascend.
    """
    workers, pairs = len(sources), 1 << (len(sources).bit_length() - 1)
    number = torch.arange(workers)
    told = (number >= pairs) | (torch.tensor(sources) == number)  # what arrived is all there is
    both, index = merged(current, arrived), arrived.index.sort(dim=1)
    alone = told[channel.hosted].to(index.values.device).unsqueeze(1)  # [L, 1]
    values = arrived.values.gather(1, index.indices)
    return Sparse(
        Dense.of(values.where(alone, both.values)),
        index.values.where(alone, both.index),
        current.n,
        current.coding,
    )


def merged(one: Sparse, other: Sparse) -> Sparse:
    """Return the k largest entries of each row of the sum of two messages of k entries.

    Of equal magnitudes the lowest place is kept. The order of the two does not matter.
    """
    k = one.index.shape[1]
    index, order = torch.cat([one.index, other.index], 1).sort(dim=1, stable=True)  # [L, 2k]
    values = torch.cat([one.values, other.values], 1).gather(1, order)
    twice = index[:, 1:] == index[:, :-1]
    values[:, :-1] += values[:, 1:].where(twice, 0)
    rank = values.abs()
    rank[:, 1:].masked_fill_(twice, -1)  # the second of a pair, which is in the first
    chosen = rank.argsort(dim=1, descending=True, stable=True)[:, :k].sort(dim=1).values
    kept = values.gather(1, chosen)
    return Sparse(Dense.of(kept), index.gather(1, chosen), one.n, one.coding)


def _holds(index: Tensor, wanted: Tensor) -> Tensor:
    """Return which of `wanted` [L, k] are among the ascending `index` [L, k], bool."""
    place = torch.searchsorted(index, wanted).clamp_(max=index.shape[1] - 1)
    return index.gather(1, place) == wanted


def largest_of_sum(total: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of `total` [n] and zeros elsewhere, and where these are, [n].

    Entries of 0 are not among them.
    """
    index = largest(total.unsqueeze(0), min(k, len(total)))[0]
    values = torch.zeros_like(total).index_copy_(0, index, total[index])
    return values, values != 0
