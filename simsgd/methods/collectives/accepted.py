"""What of a sparse message the mean holds.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Dense, Sparse


@dataclass(frozen=True)
class Accepted(Sparse):
    """The entries of each worker that went into the mean; its bytes are all that it handed over."""

    handed_over: Tensor | None = None  # bytes in all messages of the collective, [L] int64

    @classmethod
    def part(cls, message: Sparse, alive: Tensor, handed_over: Tensor) -> "Accepted":
        """Return the entries of `message` of plain values that are `alive` [L, k]."""
        chosen = selected(message, alive)
        return cls(chosen.inner, chosen.index, chosen.n, chosen.coding, chosen.counts,
                   handed_over=handed_over)  # fmt: skip

    @classmethod
    def whole(cls, message: Sparse, handed_over: Tensor) -> "Accepted":
        """Return all entries of `message`."""
        return cls(**{**vars(message), "handed_over": handed_over})

    def payload_bytes(self) -> Tensor:
        """Return the bytes of all messages of the collective, [L] int64."""
        assert self.handed_over is not None
        return self.handed_over


def selected(message: Sparse, mask: Tensor) -> Sparse:
    """Return those of the entries of `message` where `mask` [L, k] is true, of plain values."""
    counts = mask.sum(1)
    index = message.index.masked_fill(~mask, message.n)  # padding last, as its place is n
    order = index.argsort(dim=1, stable=True)
    values = message.values.where(mask, 0).gather(1, order)
    return Sparse(
        Dense(values, values.dtype, counts),
        index.gather(1, order),
        message.n,
        message.coding,
        counts,
    )
