"""Where two runs first decided differently: what to send, or which way to round.

Letters: W workers, n elements of one segment, k selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .layout import Segment
from .messages import Dense, Message, SharedSparse, Signs, Sparse
from .messages.quantised import Quantised
from .transport import Channel, rides_all_reduce


@dataclass(frozen=True)
class Flip:
    """One worker's message for a segment that holds other entries, or others' codes."""

    step: int  # counted from 1
    worker: int
    segment: str


@dataclass(frozen=True)
class Listening(Channel):
    """A channel that keeps the messages in which something was decided, until they are taken."""

    heard: list[tuple[str, Message]] = field(default_factory=list)

    def mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send and keep the messages; see `Channel`."""
        return self._kept(super().mean(message, segment), segment)

    def vote(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send and keep the messages; see `Channel`."""
        return self._kept(super().vote(message, segment), segment)

    def _kept(self, answer: tuple[Message, Tensor], segment: Segment) -> tuple[Message, Tensor]:
        message = answer[0]
        message = message.inner if isinstance(message, SharedSparse) else message
        if not rides_all_reduce(message):
            self.heard.append((segment.name, message))
        return answer


def first_flip(
    step: int, simulated: Sequence[tuple[str, Message]], real: Sequence[Message]
) -> Flip | None:
    """Return the first flip among the messages [W, ...] of one step, the same ones in both."""
    for (segment, one), other in zip(simulated, real, strict=True):
        workers = differing_rows(one, other)
        if workers:
            return Flip(step, workers[0], segment)
    return None


def differing_rows(one: Message, other: Message) -> list[int]:
    """Return the workers whose decisions differ between two messages [W, ...] of one form."""
    pair = [decisions(message).cpu() for message in (one, other)]
    rows: list[int] = (pair[0] != pair[1]).any(1).nonzero()[:, 0].tolist()
    return rows


def decisions(message: Message) -> Tensor:
    """Return what was decided for each element as a whole number, 0 for not sent, [W, n] int64."""
    if isinstance(message, Sparse):
        inner = decisions(message.inner)  # [W, k]
        whole = inner.new_zeros(len(inner), message.n + 1)  # the last column takes the padding
        return whole.scatter_(1, message.index, inner)[:, : message.n]
    if isinstance(message, SharedSparse):
        return decisions(message.inner)
    if isinstance(message, Signs):
        return message.codes.long() + 1
    if isinstance(message, Quantised):
        return message.codes.long()
    if isinstance(message, Dense) and not rides_all_reduce(message):
        return _bits(message.values.to(message.wire_dtype))
    return message.to_dense().ne(0).long()


def _bits(values: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(whole).long()
