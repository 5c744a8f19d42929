"""Few values of a segment, and their places.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ... import compiled_loops
from ...settings import SettingError, require_kind
from ..wire import (
    LONGEST_GAP,
    Wire,
    bytes_value,
    check_index_width,
    fillers,
    index_bits,
    pack_index,
    runs,
    unpack_index,
)
from ..wire import value_bytes as as_bytes
from .contract import Header, Message, for_each_row, one_element, term
from .dense import Dense

_COUNT_BYTES = 4  # a row that does not know its k from the settings begins with it, int32


@dataclass(frozen=True)
class Sparse(Message):
    """The k selected values of each worker and their places, in ascending order of place.

    Where workers select different numbers of entries, `counts` says how many of the k columns a
    row uses, the first ones; the rest is padding of value 0 and place n, and is not sent.

    With gap16 the buffer holds, beside the selected entries, one of value 0 in every gap that is
    too long; they are part of the bytes and of nothing else.
    """

    inner: Message  # the selected values, [L, k], as they are sent
    index: Tensor  # [L, k] int64, distinct in a row, ascending
    n: int
    coding: str = "int32"  # of indices: int32, int64, packed, gap16
    counts: Tensor | None = None  # entries of each row, [L] int64; None: k
    filled: bool = False  # the fillers of gap16 are among the entries
    summable = False

    @classmethod
    def of(cls, values: Tensor, index: Tensor, n: int, counts: Tensor | None = None) -> "Sparse":
        """Return the message of values [L, k] at places [L, k] among n."""
        require_kind("values", values, Tensor)
        require_kind("index", index, Tensor)
        return cls(Dense(values, values.dtype, counts), index, n, counts=counts)

    @classmethod
    def where(cls, mask: Tensor, values: Tensor) -> "Sparse":
        """Return the message of those of the values [L, n] where `mask` [L, n] is true.

        It has at least one column, were it of padding only.
        """
        require_kind("mask", mask, Tensor)
        workers, n = mask.shape
        if compiled_loops.takes(mask, values):
            return cls._chosen(mask, values)
        row, place = mask.nonzero(as_tuple=True)
        counts = row.bincount(minlength=workers)  # [L]
        column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        k = max(1, int(counts.max()))
        index = place.new_full((workers, k), n)
        index[row, column] = place
        chosen = values.new_zeros(workers, k)
        chosen[row, column] = values[row, place]
        return cls.of(chosen, index, n, counts)

    @classmethod
    def taken_where_(cls, mask: Tensor, values: Tensor) -> "Sparse":
        """Return the same, after which the values are 0 there."""
        if compiled_loops.takes(mask, values):
            return cls._chosen(mask, values, clear=True)
        message = cls.where(mask, values)
        values.masked_fill_(mask, 0)
        return message

    @classmethod
    def _chosen(cls, mask: Tensor, values: Tensor, clear: bool = False) -> "Sparse":
        from .sparse_kernels import chosen

        sent, index, counts = chosen(mask, values, clear)
        return cls.of(sent, index, mask.shape[1], counts)

    @property
    def values(self) -> Tensor:
        """What is sent for the selected entries, [L, k]."""
        return self.inner.to_dense()

    def of_rows(self, rows: Sequence[int]) -> "Sparse":
        """Return the message of other rows, or of these in another order; of plain values only."""
        assert isinstance(self.inner, Dense)
        chosen = list(rows)
        counts = None if self.counts is None else self.counts[chosen]
        inner = replace(self.inner, values=self.inner.values[chosen], counts=counts)
        return replace(self, inner=inner, index=self.index[chosen], counts=counts)

    def to(self, device: torch.device) -> "Sparse":
        """Return the message on a device; of plain values only."""
        assert isinstance(self.inner, Dense)
        counts = None if self.counts is None else self.counts.to(device)
        inner = replace(self.inner, values=self.inner.values.to(device), counts=counts)
        return replace(self, inner=inner, index=self.index.to(device), counts=counts)

    def on_wire(self, wire: Wire) -> "Sparse":
        """Return the message with its values rounded and its indices coded."""
        check_index_width(self.n, wire.index_dtype)
        return replace(self, inner=self.inner.on_wire(wire), coding=wire.index_dtype)

    def fault(self) -> str:
        """Return what is wrong with values or places that somebody chose, or ""."""
        values, index, order = self.values, self.index, "give Sparse.of(values, index, n)"
        if index.dtype != torch.int64:
            return f"has {index.dtype} as indices and {values.dtype} as values; {order}"
        if values.shape != index.shape or index.dim() != 2:
            return f"has values {[*values.shape]} and indices {[*index.shape]}; make both [L, k]"
        if not isinstance(self.n, int):
            return f"has {type(self.n).__name__} as n, which must be a whole number; {order}"
        if wrong := self._fault_of_counts():
            return wrong
        most = self.n - (self.counts is None)  # n is the place of padding
        if bool((index < 0).logical_or(index > most).any()):
            return f"has an index outside [0, {self.n})"
        steps = self.index.diff(dim=1)  # [L, k - 1]
        if self.counts is not None:  # the rest is padding
            column = torch.arange(1, self.index.shape[1], device=steps.device)
            steps = steps.masked_fill(column >= self.counts.unsqueeze(1), 1)
        if bool((steps == 0).any()):
            return "has an index twice in a row; take each index once, and sort them"
        if bool((steps > 0).all()):
            return ""
        return "has indices that do not ascend in each row; take each index once, and sort them"

    def _fault_of_counts(self) -> str:
        counts, (rows, k) = self.counts, self.index.shape
        if counts is None:
            return ""
        if not isinstance(counts, Tensor) or counts.shape != (rows,):
            shape = [*counts.shape] if isinstance(counts, Tensor) else type(counts).__name__
            return f"has {shape} as counts; give the entries of each row, [{rows}] int64"
        if counts.dtype != torch.int64:
            return f"has counts in {counts.dtype}; make them int64"
        if bool((counts < 0).logical_or(counts > k).any()):
            return f"has counts outside [0, {k}], the columns that it has; count those it sends"
        padding = torch.arange(k, device=counts.device) >= counts.unsqueeze(1)  # [L, k]
        if bool((self.index[padding] != self.n).any()):
            return "has entries beyond its counts; give the rest of a row value 0 and place n"
        return ""

    def to_dense(self) -> Tensor:
        """Return the values at their places and zeros elsewhere, [L, n]."""
        values = self.values
        whole = values.new_zeros(len(values), self._width)
        return whole.scatter_(1, self.index, values)[:, : self.n]

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        dtype = self.inner.template.dtype
        return one_element(len(self.index), self.n, dtype, self.index.device)

    def sum(self) -> Tensor:
        """Return the sum over workers, [n], without making them dense."""
        values = self.values
        if compiled_loops.takes(values, self.index):
            from .sparse_kernels import added

            return added(values, self.index, self.counts, self.n)
        total = values.new_zeros(self._width)
        return total.index_add_(0, self.index.flatten(), values.flatten())[: self.n]

    def mean_of_senders(self) -> Tensor:
        """Return the mean of each element over the workers that sent it, [n]; 0 if nobody did."""
        senders = self.index.flatten().bincount(minlength=self._width)[: self.n]
        return Sparse.sum(self).div_(senders.clamp(min=1))

    def payload_bytes(self) -> Tensor:
        """Return the bytes of values, indices and, where rows differ, a count, [L] int64."""
        if self._may_need_fillers:
            return self._filled().payload_bytes()
        bits = index_bits(self.coding, self.n)
        if self.row_bytes is not None:
            return for_each_row(self.row_bytes, self.index)
        if self.counts is None:
            return self.inner.payload_bytes() + (self.index.shape[1] * bits + 7) // 8
        return self.inner.payload_bytes() + (self.counts * bits + 7) // 8 + _COUNT_BYTES

    @property
    def row_bytes(self) -> int | None:
        """The bytes of values and indices, where all rows have as many."""
        values = self.inner.row_bytes
        if self.counts is not None or self._may_need_fillers or values is None:
            return None
        return values + (self.index.shape[1] * index_bits(self.coding, self.n) + 7) // 8

    def entries(self) -> Tensor:
        """Return the selected entries of each worker, [L] int64."""
        if self.counts is not None:
            return self.counts
        return for_each_row(self.index.shape[1], self.index)

    def explained(self, row: int) -> str:
        """Return the arithmetic of values, indices and, where rows differ, the count."""
        if self._may_need_fillers:
            return self._filled().explained(row)
        k = int(self.entries()[row])
        bits = index_bits(self.coding, self.n)
        size = (bits, "bit") if self.coding == "packed" else (bits // 8, "B")
        name = ("run length", "run lengths") if self.coding == "gap16" else ("index", "indices")
        words = [self.inner.explained(row), term(k, *name, *size)]
        count = [] if self.counts is None else [term(1, "count", "counts", _COUNT_BYTES)]
        return " + ".join([*words, *count])

    def pack(self, row: int) -> Tensor:
        """Return the count where rows differ, then indices, then values of worker `row`, uint8."""
        if self._may_need_fillers:
            return self._filled().pack(row)
        k = self.index.shape[1] if self.counts is None else int(self.counts[row])
        head = [] if self.counts is None else [as_bytes(torch.tensor([k], dtype=torch.int32))]
        places = pack_index(self.index[row, :k], self.n, self.coding)
        return torch.cat([*head, places, self.inner.pack(row).cpu()])

    def header(self) -> Header:
        """Return n, the index coding, k where all rows have the same, and the values' header."""
        return {
            "n": self.n,
            "coding": self.coding,
            "k": None if self._rows_differ else self.index.shape[1],
            "inner": (type(self.inner), self.inner.header()),
        }

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Sparse":
        """Return the message of packed rows."""
        n, coding = header["n"], header["coding"]
        head = _COUNT_BYTES if header["k"] is None else 0
        ks = [header["k"] if not head else _count(buffer) for buffer in buffers]
        cuts = [head + (k * index_bits(coding, n) + 7) // 8 for k in ks]
        index = torch.full((len(buffers), max(ks, default=0)), n)
        for row, (buffer, k, cut) in enumerate(zip(buffers, ks, cuts, strict=True)):
            index[row, :k] = unpack_index(buffer[head:cut], n, k, coding)
        counts = torch.tensor(ks) if head else None
        kind, inner_header = header["inner"]
        rest = [buffer[cut:] for buffer, cut in zip(buffers, cuts, strict=True)]
        inner = kind.unpack(rest, {**inner_header, "counts": counts})
        return cls(inner, index, n, coding, counts, filled=coding == "gap16")

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract the values at their places from `x` [L, n]."""
        if self.counts is None:
            x.scatter_add_(1, self.index, -self.values)
            return
        values = self.values
        if values.dtype != x.dtype or not compiled_loops.takes(values, self.index, x):
            x.sub_(self.to_dense())
            return
        from .sparse_kernels import subtract_

        subtract_(values, self.index, self.counts, x)

    def clear_(self, x: Tensor) -> None:
        """Zero `x` [L, n] at the places sent."""
        if self.counts is None:
            x.scatter_(1, self.index, 0.0)
        elif compiled_loops.takes(self.index, x):
            from .sparse_kernels import clear_

            clear_(self.index, self.counts, x)
        else:
            stays = x.new_ones(len(x), self._width).scatter_(1, self.index, 0.0)
            x.mul_(stays[:, : self.n])

    @property
    def _may_need_fillers(self) -> bool:
        return self.coding == "gap16" and self.n > LONGEST_GAP and not self.filled

    @property
    def _rows_differ(self) -> bool:
        return self.counts is not None or self._may_need_fillers

    def _filled(self) -> "Sparse":
        """Return the message with the fillers that gap16 needs as entries of its own.

        There are fewer than n / LONGEST_GAP of them in a row.
        """
        if not self.inner.has_zero:
            rule = f"cannot be gap16 for more than {LONGEST_GAP} elements: a long gap needs a zero"
            whose = f"which {type(self.inner).__name__} has no room for"
            raise SettingError("index_dtype", None, f"{rule}, {whose}", "use int32 or packed")
        k = self.index.shape[1]
        width = k + (self.n - 1) // LONGEST_GAP
        place = torch.arange(width, device=self.index.device)
        counts = for_each_row(k, self.index) if self.counts is None else self.counts
        padding = place[:k] >= counts.unsqueeze(1)  # [L, k]
        before = fillers(self.index).masked_fill(padding, 0)  # [L, k]
        column = (place[:k] + before.cumsum(1)).masked_fill(padding, width)
        counts = counts + before.sum(1)
        step = self.index.new_full((len(counts), width + 1), LONGEST_GAP)
        step.scatter_(1, column, runs(self.index) % LONGEST_GAP + 1)
        index = (step[:, :width].cumsum(1) - 1).masked_fill(place >= counts.unsqueeze(1), self.n)
        inner = self.inner.spread(column, width, counts)
        return replace(self, inner=inner, index=index, counts=counts, filled=True)

    @property
    def _width(self) -> int:
        return self.n if self.counts is None else self.n + 1  # the last column takes the padding


def _count(buffer: Tensor) -> int:
    return int(bytes_value(buffer[:_COUNT_BYTES], torch.int32))
