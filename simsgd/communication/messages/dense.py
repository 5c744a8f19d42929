"""All values of a segment.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...settings import require_kind
from ..wire import Wire, bytes_value, value_bytes
from .contract import Header, Message, for_each_row, rounded, term


@dataclass(frozen=True)
class Dense(Message):
    """All n values of each worker."""

    values: Tensor  # [L, n], already rounded to wire_dtype
    wire_dtype: torch.dtype
    counts: Tensor | None = None  # values of each row that are sent, [L] int64; None: n
    summable = True

    @classmethod
    def of(cls, values: Tensor) -> "Dense":
        """Return the message of values [L, n] in their own dtype."""
        require_kind("values", values, Tensor)
        return cls(values, values.dtype)

    def on_wire(self, wire: Wire) -> "Dense":
        """Return the message with its values rounded."""
        dtype = wire.dtype(self.values.dtype)
        return replace(self, values=rounded(self.values, dtype), wire_dtype=dtype)

    def to_dense(self) -> Tensor:
        """Return the values, [L, n]."""
        return self.values

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        return self.values.sum(0)

    def payload_bytes(self) -> Tensor:
        """Return the values' bytes for each worker, [L] int64."""
        if self.counts is not None:
            return self.counts * self.wire_dtype.itemsize
        return for_each_row(self.values.shape[1] * self.wire_dtype.itemsize, self.values)

    @property
    def row_bytes(self) -> int | None:
        """The values' bytes, where all rows have as many."""
        if self.counts is not None:
            return None
        return self.values.shape[1] * self.wire_dtype.itemsize

    def entries(self) -> Tensor:
        """Return the values of each worker, [L] int64."""
        return (
            for_each_row(self.values.shape[1], self.values) if self.counts is None else self.counts
        )

    def explained(self, row: int) -> str:
        """Return "n values x their size"."""
        return term(int(self.entries()[row]), "value", "values", self.wire_dtype.itemsize)

    def pack(self, row: int) -> Tensor:
        """Return the values of worker `row`, uint8."""
        sent = self.values.shape[1] if self.counts is None else int(self.counts[row])
        return value_bytes(self.values[row, :sent].to(self.wire_dtype))

    def header(self) -> Header:
        """Return the dtypes."""
        return {"dtype": self.values.dtype, "wire_dtype": self.wire_dtype}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Dense":
        """Return the message of packed rows."""
        rows = [bytes_value(b, header["wire_dtype"]).to(header["dtype"]) for b in buffers]
        return cls(pad_sequence(rows, batch_first=True), header["wire_dtype"], header.get("counts"))

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract the values from `x` [L, n]."""
        x.sub_(self.values)

    @property
    def has_zero(self) -> bool:
        """Yes: it is a value."""
        return True

    def spread(self, column: Tensor, width: int, counts: Tensor) -> "Dense":
        """Return the values at other columns among `width`, and zeros between."""
        wide = self.values.new_zeros(len(self.values), width + 1)  # the last column: padding
        wide.scatter_(1, column, self.values)
        return replace(self, values=wide[:, :width], counts=counts)

    def clear_(self, x: Tensor) -> None:
        """Leave `x` as it is: nothing was selected."""
