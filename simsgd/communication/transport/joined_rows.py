"""Unpacks what arrived, also where the messages for several segments came as one.

Letters: W workers, S segments, P elements of all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cuts import Cuts
from ..messages import Joined, Message, SharedSparse


def unpacked(
    message: Message, buffers: Sequence[Tensor], lengths: Sequence[Sequence[int]]
) -> Message:
    """Return the messages of packed rows of some workers; `lengths` are those of joined ones."""
    header = on_cpu(message.header())
    if lengths:
        header["lengths"] = [list(own) for own in zip(*lengths, strict=True)]
    return message.unpack(buffers, header)


def mean_of_shared(message: Joined, mean_of: Callable[[Message], Tensor]) -> Tensor:
    """Return the mean, [P], of messages with values at places that all workers share.

    `mean_of` returns the mean over workers of a message of values alone.
    """
    parts = [part for part in message.parts if isinstance(part, SharedSparse)]
    cuts = Cuts(tuple(len(part.index) for part in parts))
    values = cuts.split(mean_of(Joined.of(cuts, [part.inner for part in parts])))
    pairs = zip(parts, values, strict=True)
    return torch.cat([v.new_zeros(p.n).index_copy_(0, p.index, v) for p, v in pairs])


def on_cpu(header: Any) -> Any:
    """Return a header with its tensors on the CPU, where buffers are unpacked."""
    if isinstance(header, Tensor):
        return header.cpu()
    if isinstance(header, dict):
        return {name: on_cpu(value) for name, value in header.items()}
    if isinstance(header, list):
        return [on_cpu(value) for value in header]
    return tuple(map(on_cpu, header)) if isinstance(header, tuple) else header
