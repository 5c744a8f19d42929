"""Finds where two runs first decided differently: what to send, or which way to round.

Letters: W workers, n elements of one segment, k selected.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.ledger import Transfer
from ..communication.messages import Dense, Message, SharedSparse, Signs, Sparse
from ..communication.messages.quantized import Quantized
from ..communication.transport import rides_all_reduce


@dataclass(frozen=True)
class Flip:
    """The first place in a step where two runs decided differently.

    That is a worker's message for a segment that holds other entries or other codes, or its
    gradient at a kink of the model, see `kinks`.
    """

    step: int  # counted from 1
    worker: int
    segment: str
    kind: str = "message"  # or "kink"
    entries: int = 0  # of all messages of the step that were decided differently
    decided: int = 0  # entries that either run sent


Decided = tuple[str, Tensor]  # the segment, and what was decided for each entry, [W, n] int64


class DecisionRecorder:
    """An observer of a channel that keeps what was decided in messages: see `decisions`."""

    def __init__(self) -> None:
        self.decided: list[Decided] = []  # since it was last cleared

    def __call__(self, transfer: Transfer, message: Message | None) -> None:
        """Keep what was decided, if anything was: values in an all-reduce are as computed."""
        message = message.inner if isinstance(message, SharedSparse) else message
        if message is not None and not rides_all_reduce(message):
            self.decided.append((transfer.segment, decisions(message)))


def first_flip(step: int, simulated: Sequence[Decided], real: Sequence[Decided]) -> Flip | None:
    """Return the first flip among all that was decided in one step, by name of the segment.

    Where segments go together they do so in another order.
    """
    flip: Flip | None = None
    entries = decided = 0
    for (segment, one), (_, other) in zip(_by_name(simulated), _by_name(real), strict=True):
        differ = one != other
        entries += int(differ.sum())
        decided += int((one.ne(0) | other.ne(0)).sum())
        if flip is None and bool(differ.any()):
            flip = Flip(step, int(differ.any(1).nonzero()[0]), segment)
    return flip and dataclasses.replace(flip, entries=entries, decided=decided)


def _by_name(decided: Sequence[Decided]) -> list[Decided]:
    return sorted(decided, key=lambda own: own[0])  # messages of a segment stay in their order


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
    if isinstance(message, Quantized):
        return message.codes.long()
    if isinstance(message, Dense) and not rides_all_reduce(message):
        return _bits(message.values.to(message.wire_dtype))
    return message.to_dense().ne(0).long()


def _bits(values: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(whole).long()
