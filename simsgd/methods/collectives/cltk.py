"""The entries at places that one worker chooses for all.

Letters: W workers, L hosted here, n elements of one segment, k kept.
"""

import torch
from torch import Tensor

from ...communication.messages import Message, Places, SharedSparse, Sparse
from ...communication.segments import Segment
from ...communication.transport import Channel
from .accepted import Accepted


def cltk(
    message: Sparse, x: Tensor, step: int, segment: Segment, channel: Channel
) -> tuple[Message, Tensor]:
    """Send everybody's entries of `x` [L, n] at the leader's places; return them and their mean.

    Worker t mod W leads step t. Its places go to all along a binomial tree, in ceil(log2 W) rounds;
    then values line up, and ride an all-reduce. Nothing is rejected. What a memory keeps of the
    other workers is what they have to send at other places: it works as far as workers agree.
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, https://arxiv.org/abs/2104.11125.

    Differs from the paper: the low-pass filter is a setting of the memory, `residual:beta=0.9`.
    """
    workers = channel.ledger.workers
    leader = step % workers
    rank = [(w - leader) % workers for w in range(workers)]
    places = Places(message.index, message.n, x.dtype).on_wire(channel.wire)
    handed_over = torch.zeros_like(places.payload_bytes())
    for reached in [1 << bit for bit in range((workers - 1).bit_length())]:
        sources = [
            (leader + r - reached) % workers if reached <= r < 2 * reached else w
            for w, r in enumerate(rank)
        ]
        copies = [sum(s == w != to for to, s in enumerate(sources)) for w in range(workers)]
        hosted = torch.tensor(copies, device=x.device)[channel.hosted]
        handed_over = handed_over + places.payload_bytes() * hosted
        places = channel.pass_on(places, segment, sources)
    index = places.index[0]
    sent, mean = channel.all_reduce_mean(SharedSparse.of(x[:, index], index, message.n), segment)
    assert isinstance(sent, SharedSparse)
    whole = Sparse(sent.inner, index.expand(len(x), -1).contiguous(), message.n)
    return Accepted.whole(whole, handed_over + sent.payload_bytes()), mean
