"""A matrix as the product of two thin ones.

Letters: L workers hosted here, n = rows * cols elements of one segment, r rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..wire import Wire, bytes_value, value_bytes
from .contract import Header, Message, for_each_row, one_element, rounded, term


@dataclass(frozen=True)
class LowRank(Message):
    """The matrix P Q^T of each worker, sent as P and Q.

    Where all workers came to the same P and Q, one row stands for all.
    """

    p: Tensor  # [L, rows, r], or [1, rows, r] for all workers
    q: Tensor  # [L, cols, r], or [1, cols, r] for all workers
    workers: int  # L
    wire_dtype: torch.dtype
    summable = False

    @classmethod
    def of(cls, p: Tensor, q: Tensor, workers: int) -> "LowRank":
        """Return the message of factors in their own dtype."""
        return cls(p, q, workers, p.dtype)

    def on_wire(self, wire: Wire) -> "LowRank":
        """Return the message with both factors rounded."""
        dtype = wire.dtype(self.p.dtype)
        p, q = rounded(self.p, dtype), rounded(self.q, dtype)
        return replace(self, p=p, q=q, wire_dtype=dtype)

    def to_dense(self) -> Tensor:
        """Return P Q^T of each worker, row after row, [L, n]."""
        return (self.p @ self.q.mT).flatten(1).expand(self.workers, -1)

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        n = self.p.shape[1] * self.q.shape[1]
        return one_element(self.workers, n, self.p.dtype, self.p.device)

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        return self.to_dense().sum(0)

    def payload_bytes(self) -> Tensor:
        """Return the bytes of both factors, [L] int64."""
        return self._for_each_worker(self.row_bytes)

    @property
    def row_bytes(self) -> int:
        """The bytes of both factors."""
        return self._numbers * self.wire_dtype.itemsize

    @property
    def _numbers(self) -> int:
        return self.p[0].numel() + self.q[0].numel()

    def _for_each_worker(self, number: int) -> Tensor:
        return for_each_row(number, self.p[:1, 0, 0].expand(self.workers))

    def entries(self) -> Tensor:
        """Return the numbers in both factors of each worker, [L] int64."""
        return self._for_each_worker(self._numbers)

    def explained(self, row: int) -> str:
        """Return the values of P and those of Q, times their size."""
        size = self.wire_dtype.itemsize
        factors = [(self.p, "P"), (self.q, "Q")]
        words = [term(f[0].numel(), f"value of {x}", f"values of {x}", size) for f, x in factors]
        return " + ".join(words)

    def pack(self, row: int) -> Tensor:
        """Return P, then Q, of worker `row`, uint8."""
        factors = [f.expand(self.workers, -1, -1)[row].flatten() for f in (self.p, self.q)]
        return value_bytes(torch.cat(factors).to(self.wire_dtype))

    def header(self) -> Header:
        """Return the shapes and the dtypes."""
        return {
            "rows": self.p.shape[1],
            "cols": self.q.shape[1],
            "rank": self.p.shape[2],
            "dtype": self.p.dtype,
            "wire_dtype": self.wire_dtype,
        }

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "LowRank":
        """Return the message of packed rows."""
        rows, cols, rank = header["rows"], header["cols"], header["rank"]
        sent = torch.stack([bytes_value(buffer, header["wire_dtype"]) for buffer in buffers])
        p, q = sent.to(header["dtype"]).split([rows * rank, cols * rank], dim=1)
        p, q = p.unflatten(1, (rows, rank)), q.unflatten(1, (cols, rank))
        return cls(p, q, len(buffers), header["wire_dtype"])

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract P Q^T from `x` [L, n]."""
        x.sub_(self.to_dense())

    def clear_(self, x: Tensor) -> None:
        """Leave `x` as it is: nothing was selected."""
