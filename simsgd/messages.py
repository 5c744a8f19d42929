"""What workers put on the network, and its exact length in bytes.

A message holds L workers' payloads for one segment, already rounded to what arrives: a memory
that subtracts it keeps the rounding error as well.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .wire import (
    Wire,
    bytes_value,
    check_index_width,
    index_bits,
    pack_index,
    unpack_index,
    value_bytes,
)

State = dict[str, Tensor]  # plain, updated in place, saved verbatim; rows are workers
Header = dict[str, Any]  # what both ends know without sending it


class Message(ABC):
    """L workers' payloads for one segment."""

    summable: bool  # may ride an all-reduce: the sum of two messages is such a message

    @abstractmethod
    def on_wire(self, wire: Wire) -> "Message":
        """Return the message as it arrives when sent in the given form."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return what each message stands for, [L, n]."""

    @abstractmethod
    def sum(self) -> Tensor:
        """Return the sum over workers, [n], added in the order of workers."""

    @abstractmethod
    def payload_bytes(self) -> Tensor:
        """Return the bytes of each worker's payload, [L] int64: the length of what `pack` makes."""

    @abstractmethod
    def pack(self, row: int) -> Tensor:
        """Return the buffer that worker `row` sends, uint8."""

    @abstractmethod
    def header(self) -> Header:
        """Return what `unpack` needs beside the buffers."""

    @classmethod
    @abstractmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Message":
        """Return the message whose rows were packed into `buffers`."""

    @abstractmethod
    def subtract_from_(self, x: Tensor) -> None:
        """Subtract in place what each message stands for from `x` [L, n]."""

    @abstractmethod
    def clear_(self, x: Tensor) -> None:
        """Zero in place the entries of `x` [L, n] that were selected to be sent.

        A message that sends all entries selects none.
        """


@dataclass(frozen=True)
class Dense(Message):
    """All n values of each worker."""

    values: Tensor  # [L, n], already rounded to wire_dtype
    wire_dtype: torch.dtype
    summable = True

    @classmethod
    def of(cls, values: Tensor) -> "Dense":
        """Return the message of values [L, n] in their own dtype."""
        return cls(values, values.dtype)

    def on_wire(self, wire: Wire) -> "Dense":
        """Return the message with its values rounded."""
        dtype = wire.dtype(self.values.dtype)
        return Dense(_rounded(self.values, dtype), dtype)

    def to_dense(self) -> Tensor:
        """Return the values, [L, n]."""
        return self.values

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        return self.values.sum(0)

    def payload_bytes(self) -> Tensor:
        """Return n values' bytes for each worker, [L] int64."""
        rows, n = self.values.shape
        return _bytes(rows, n * self.wire_dtype.itemsize, self.values)

    def pack(self, row: int) -> Tensor:
        """Return the values of worker `row`, uint8."""
        return value_bytes(self.values[row].to(self.wire_dtype))

    def header(self) -> Header:
        """Return the dtypes."""
        return {"dtype": self.values.dtype, "wire_dtype": self.wire_dtype}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Dense":
        """Return the message of packed rows."""
        rows = [bytes_value(b, header["wire_dtype"]).to(header["dtype"]) for b in buffers]
        return cls(torch.stack(rows), header["wire_dtype"])

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract the values from `x` [L, n]."""
        x.sub_(self.values)

    def clear_(self, x: Tensor) -> None:
        """Leave `x` as it is: nothing was selected."""


@dataclass(frozen=True)
class Sparse(Message):
    """The k selected values of each worker and their places, in ascending order of place."""

    values: Tensor  # [L, k], already rounded to wire_dtype
    index: Tensor  # [L, k] int64, distinct in a row, ascending
    n: int
    wire_dtype: torch.dtype
    coding: str = "int32"  # of indices: int32, int64, packed
    summable = False

    @classmethod
    def of(cls, values: Tensor, index: Tensor, n: int) -> "Sparse":
        """Return the message of values [L, k] at places [L, k] among n."""
        return cls(values, index, n, values.dtype)

    def on_wire(self, wire: Wire) -> "Sparse":
        """Return the message with its values rounded and its indices coded."""
        check_index_width(self.n, wire.index_dtype)
        dtype = wire.dtype(self.values.dtype)
        return replace(
            self,
            values=_rounded(self.values, dtype),
            wire_dtype=dtype,
            coding=wire.index_dtype,
        )

    def to_dense(self) -> Tensor:
        """Return the values at their places and zeros elsewhere, [L, n]."""
        whole = self.values.new_zeros(self.values.shape[0], self.n)
        return whole.scatter_(1, self.index, self.values)

    def sum(self) -> Tensor:
        """Return the sum over workers, [n], without making them dense."""
        total = self.values.new_zeros(self.n)
        return total.index_add_(0, self.index.flatten(), self.values.flatten())

    def payload_bytes(self) -> Tensor:
        """Return the bytes of k values and k indices for each worker, [L] int64."""
        rows, k = self.values.shape
        size = k * self.wire_dtype.itemsize + (k * index_bits(self.coding, self.n) + 7) // 8
        return _bytes(rows, size, self.values)

    def pack(self, row: int) -> Tensor:
        """Return the values, then the indices of worker `row`, uint8."""
        values = value_bytes(self.values[row].to(self.wire_dtype))
        return torch.cat([values, pack_index(self.index[row], self.n, self.coding)])

    def header(self) -> Header:
        """Return n, the dtypes and the index coding; k follows from a buffer's length."""
        return {
            "n": self.n,
            "dtype": self.values.dtype,
            "wire_dtype": self.wire_dtype,
            "coding": self.coding,
        }

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Sparse":
        """Return the message of packed rows."""
        n, wire_dtype, coding = header["n"], header["wire_dtype"], header["coding"]
        k = len(buffers[0]) * 8 // (wire_dtype.itemsize * 8 + index_bits(coding, n))
        cut = k * wire_dtype.itemsize
        values = [bytes_value(b[:cut], wire_dtype).to(header["dtype"]) for b in buffers]
        index = [unpack_index(b[cut:], n, k, coding) for b in buffers]
        return cls(torch.stack(values), torch.stack(index), n, wire_dtype, coding)

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract the values at their places from `x` [L, n]."""
        x.scatter_add_(1, self.index, -self.values)

    def clear_(self, x: Tensor) -> None:
        """Zero `x` [L, n] at the places sent."""
        x.scatter_(1, self.index, 0.0)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype).to(values.dtype)


def _bytes(rows: int, size: int, like: Tensor) -> Tensor:
    return torch.full((rows,), size, dtype=torch.int64, device=like.device)
