"""The tensors of a compressor from another library.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..wire import Wire, bytes_value, value_bytes
from .contract import Header, Message, term

Decode = Callable[[list[Tensor]], Tensor]  # from one worker's tensors to its values, [n]


@dataclass(frozen=True)
class Foreign(Message):
    """Each worker's tensors, sent as the bytes they have in memory, and what they stand for.

    Their dtypes and shapes, and all else that decoding needs, are known at both ends without being
    sent. The wire's dtypes do not concern them. No entry counts as selected.
    """

    tensors: list[list[Tensor]]  # of each worker
    decodes: list[Decode]  # of each worker
    values: Tensor  # what they stand for, [L, n]
    summable = False

    def on_wire(self, wire: Wire) -> "Foreign":
        """Return the message: it travels as it is."""
        return self

    def to_dense(self) -> Tensor:
        """Return what was decoded, [L, n]."""
        return self.values

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        return self.values.sum(0)

    def payload_bytes(self) -> Tensor:
        """Return the bytes of each worker's tensors, [L] int64."""
        sizes = [sum(t.numel() * t.element_size() for t in row) for row in self.tensors]
        return torch.tensor(sizes, device=self.values.device)

    def entries(self) -> Tensor:
        """Return the elements of each worker's tensors, [L] int64."""
        sizes = [sum(t.numel() for t in row) for row in self.tensors]
        return torch.tensor(sizes, device=self.values.device)

    def explained(self, row: int) -> str:
        """Return the elements of each tensor times their size."""
        return " + ".join(_explained(t) for t in self.tensors[row]) or "0 tensors x 0 B"

    def pack(self, row: int) -> Tensor:
        """Return the memory of the tensors of worker `row`, one after the other, uint8."""
        return torch.cat([torch.empty(0, dtype=torch.uint8), *map(value_bytes, self.tensors[row])])

    def header(self) -> Header:
        """Return the form of each tensor, how each worker's are decoded, and the values' dtype."""
        forms = [[(t.dtype, t.shape) for t in row] for row in self.tensors]
        return {"forms": forms, "decodes": self.decodes, "dtype": self.values.dtype}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Foreign":
        """Return the message of packed rows."""
        rows = [_cut(b, forms) for b, forms in zip(buffers, header["forms"], strict=True)]
        decoded = [decode(row) for decode, row in zip(header["decodes"], rows, strict=True)]
        return cls(rows, header["decodes"], torch.stack(decoded).to(header["dtype"]))

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract what was decoded from `x` [L, n]."""
        x.sub_(self.values)

    def clear_(self, x: Tensor) -> None:
        """Leave `x` as it is: what was selected is not known."""


def _cut(buffer: Tensor, forms: Sequence[tuple[torch.dtype, torch.Size]]) -> list[Tensor]:
    sizes = [shape.numel() * dtype.itemsize for dtype, shape in forms]
    parts = buffer.split(sizes)
    return [
        bytes_value(part, dtype).reshape(shape)
        for part, (dtype, shape) in zip(parts, forms, strict=True)
    ]


def _explained(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return term(tensor.numel(), f"{kind} value", f"{kind} values", tensor.element_size())
