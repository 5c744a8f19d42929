"""Unpacks what arrived, also where the messages for several segments came as one.

Letters: W workers, S segments.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..messages import Joined, Message, Places, Sparse


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


def on_cpu(header: Any) -> Any:
    """Return a header with its tensors on the CPU, where buffers are unpacked."""
    if isinstance(header, Tensor):
        return header.cpu()
    if isinstance(header, dict):
        return {name: on_cpu(value) for name, value in header.items()}
    if isinstance(header, list):
        return [on_cpu(value) for value in header]
    return tuple(map(on_cpu, header)) if isinstance(header, tuple) else header
