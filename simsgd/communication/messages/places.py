"""Places in a segment, without the values there.

Letters: L workers hosted here, n elements of one segment, k places.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..wire import Wire, check_index_width, index_bits, pack_index, unpack_index
from .contract import Header, Message, for_each_row, one_element, term


@dataclass(frozen=True)
class Places(Message):
    """The places that each worker chooses, as many of each: who gets them sends its values there.

    It stands for 1 at each place.
    """

    index: Tensor  # [L, k] int64, distinct in a row, ascending
    n: int
    like: torch.dtype  # of what it stands for
    coding: str = "int32"  # int32, int64 or packed
    summable = False

    def on_wire(self, wire: Wire) -> "Places":
        """Return the message with its places coded."""
        check_index_width(self.n, wire.index_dtype)
        return replace(self, coding=wire.index_dtype)

    def of_rows(self, rows: Sequence[int]) -> "Places":
        """Return the message of other rows, or of these in another order."""
        return replace(self, index=self.index[list(rows)])

    def to(self, device: torch.device) -> "Places":
        """Return the message with its places on a device."""
        return replace(self, index=self.index.to(device))

    def to_dense(self) -> Tensor:
        """Return 1 at each place and zeros elsewhere, [L, n]."""
        whole = torch.zeros(len(self.index), self.n, dtype=self.like, device=self.index.device)
        return whole.scatter_(1, self.index, 1.0)

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        return one_element(len(self.index), self.n, self.like, self.index.device)

    def sum(self) -> Tensor:
        """Return by how many workers each place was chosen, [n]."""
        return self.to_dense().sum(0)

    def payload_bytes(self) -> Tensor:
        """Return the bytes of the places, [L] int64."""
        return for_each_row(self.row_bytes, self.index)

    @property
    def row_bytes(self) -> int:
        """The bytes of the places."""
        return (self.index.shape[1] * index_bits(self.coding, self.n) + 7) // 8

    def entries(self) -> Tensor:
        """Return no number for any worker, [L] int64: indices do not count."""
        return for_each_row(0, self.index)

    def explained(self, row: int) -> str:
        """Return the arithmetic of the places."""
        bits = index_bits(self.coding, self.n)
        size = (bits, "bit") if self.coding == "packed" else (bits // 8, "B")
        return term(self.index.shape[1], "index", "indices", *size)

    def pack(self, row: int) -> Tensor:
        """Return the places of worker `row`, uint8."""
        return pack_index(self.index[row], self.n, self.coding)

    def header(self) -> Header:
        """Return n, how many places there are, their coding, and the dtype."""
        return {"n": self.n, "k": self.index.shape[1], "coding": self.coding, "like": self.like}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Places":
        """Return the message of packed rows."""
        n, k, coding = header["n"], header["k"], header["coding"]
        rows = [unpack_index(buffer, n, k, coding) for buffer in buffers]
        return cls(torch.stack(rows), n, header["like"], coding)

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract 1 from `x` [L, n] at each place."""
        x.sub_(self.to_dense())

    def clear_(self, x: Tensor) -> None:
        """Zero `x` [L, n] at each place."""
        x.scatter_(1, self.index, 0.0)
