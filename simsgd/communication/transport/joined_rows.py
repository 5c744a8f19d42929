"""Unpacks what arrived, also where the messages for several segments came as one.

Letters: W workers, S segments.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..messages import Joined, Message, Places, Sparse
from ..wire import bytes_value, pack_bits, unpack_bits, value_bytes
from .contract import outcome


def unpacked(
    message: Message, buffers: Sequence[Tensor], lengths: Sequence[Sequence[int]]
) -> Message:
    """Return the messages of packed rows of some workers; `lengths` are those of joined ones."""
    header = on_cpu(message.header())
    if lengths:
        header["lengths"] = [list(own) for own in zip(*lengths, strict=True)]
    return message.unpack(buffers, header)


def moved(message: Message, device: torch.device) -> Any:
    """Return what was passed on, a message of the same kind, on a device."""
    if isinstance(message, Joined):
        return Joined.of(message.cuts, [moved(part, device) for part in message.parts])
    assert isinstance(message, Sparse | Places)
    return message.to(device)


def outcomes(rows: Message) -> Tensor:
    """Return what a server makes of all workers' messages, uint8: votes, a bit each, or means."""
    found = []
    for part in rows.parts:
        if part.summable:
            found.append(value_bytes(part.mean_of_senders()))
        else:
            vote = outcome(part.to_dense().sign().sum(0))
            found.append(pack_bits(vote.gt(0).long(), 1))
    return torch.cat(found).cpu()


def unpacked_outcomes(sent: Tensor, message: Message) -> Tensor:
    """Return what `outcomes` packed for messages of the same kind, [P]."""
    likes = [part.template for part in message.parts]  # [L, n]
    sizes = [
        like.shape[1] * like.element_size() if part.summable else -(-like.shape[1] // 8)
        for part, like in zip(message.parts, likes, strict=True)
    ]
    pieces = zip(message.parts, likes, sent.split(sizes), strict=True)
    return torch.cat(
        [
            bytes_value(own, like.dtype)
            if part.summable
            else unpack_bits(own, 1, like.shape[1]).to(like.dtype).mul_(2).sub_(1)
            for part, like, own in pieces
        ]
    )


def on_cpu(header: Any) -> Any:
    """Return a header with its tensors on the CPU, where buffers are unpacked."""
    if isinstance(header, Tensor):
        return header.cpu()
    if isinstance(header, dict):
        return {name: on_cpu(value) for name, value in header.items()}
    if isinstance(header, list):
        return [on_cpu(value) for value in header]
    return tuple(map(on_cpu, header)) if isinstance(header, tuple) else header
