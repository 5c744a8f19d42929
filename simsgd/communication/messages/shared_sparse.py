"""Few values of a segment, at places that follow from seed and step.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..wire import Wire
from .contract import Header, Message, one_element, term
from .dense import Dense


@dataclass(frozen=True)
class SharedSparse(Message):
    """The k values of each worker at the same places, which are not sent.

    They follow from what all workers share: the seed and the step. So the values of all workers
    line up, and ride an all-reduce if they can be summed at all.
    """

    inner: Message  # the selected values, [L, k], as they are sent
    index: Tensor  # [k] int64, distinct
    n: int

    @classmethod
    def of(cls, values: Tensor, index: Tensor, n: int) -> "SharedSparse":
        """Return the message of values [L, k] at places [k] among n."""
        return cls(Dense.of(values), index, n)

    @property
    def summable(self) -> bool:
        """Whether the values are."""
        return self.inner.summable

    @property
    def values(self) -> Tensor:
        """What is sent for the selected entries, [L, k]."""
        return self.inner.to_dense()

    @property
    def counts(self) -> None:
        """Nothing: every row has k entries."""
        return None

    def on_wire(self, wire: Wire) -> "SharedSparse":
        """Return the message with its values rounded."""
        return replace(self, inner=self.inner.on_wire(wire))

    def to_dense(self) -> Tensor:
        """Return the values at their places and zeros elsewhere, [L, n]."""
        values = self.values
        return values.new_zeros(len(values), self.n).index_copy_(1, self.index, values)

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        inner = self.inner.template
        return one_element(len(inner), self.n, inner.dtype, inner.device)

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        total = self.inner.sum()  # [k]
        return total.new_zeros(self.n).index_copy_(0, self.index, total)

    def payload_bytes(self) -> Tensor:
        """Return the bytes of the values, [L] int64."""
        return self.inner.payload_bytes()

    @property
    def row_bytes(self) -> int | None:
        """The bytes of the values."""
        return self.inner.row_bytes

    def entries(self) -> Tensor:
        """Return k for each worker, [L] int64."""
        return self.inner.entries()

    def explained(self, row: int) -> str:
        """Return the arithmetic of the values; places cost nothing."""
        places = term(len(self.index), "shared place", "shared places", 0)
        return f"{self.inner.explained(row)} + {places}"

    def pack(self, row: int) -> Tensor:
        """Return the values of worker `row`, uint8."""
        return self.inner.pack(row)

    def header(self) -> Header:
        """Return n, the places, and the values' header."""
        return {"n": self.n, "index": self.index, "inner": (type(self.inner), self.inner.header())}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "SharedSparse":
        """Return the message of packed rows."""
        kind, inner_header = header["inner"]
        return cls(kind.unpack(buffers, inner_header), header["index"], header["n"])

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract the values at their places from `x` [L, n]."""
        x.index_add_(1, self.index, self.values, alpha=-1)

    def clear_(self, x: Tensor) -> None:
        """Zero `x` [L, n] at the places sent."""
        x.index_fill_(1, self.index, 0.0)
