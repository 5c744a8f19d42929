"""The shared part of all messages of few bits a value.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ... import compiled_loops
from ..wire import Wire, bytes_value, value_bytes
from .contract import Header, Message, for_each_row, one_element, term

if TYPE_CHECKING:
    from .code_kernels import Decoder

_SCALE_BYTES = 4  # float32
_BYTES: dict[object, int] = {}  # of rows, by the form and number of their codes


@dataclass(frozen=True)
class Quantized(Message):
    """A small code for each value, and what the codes are multiples of.

    A buffer holds the row's scales in float32, in float64 runs too, then its codes. The form of
    codes is the method's own, so the `value_dtype` of a `Wire` changes nothing here. Entries behind
    counts[w] have code 0, stand for 0 and are not sent; a row without entries takes no bytes.
    """

    codes: Tensor  # [L, n] integers
    scales: Tensor  # [L, m] float32, m given by the form
    dtype: torch.dtype  # of the values that the codes stand for
    counts: Tensor | None  # entries of each row that are sent, [L] int64; None: n
    summable = False

    @abstractmethod
    def values(self) -> Tensor:
        """Return what the codes stand for, [L, n], by torch."""

    @abstractmethod
    def _decoder(self) -> "Decoder | None":
        """Return the compiled form of the same, or None where it has none."""

    @abstractmethod
    def _settings(self) -> Header:
        """Return the fields that a subclass adds."""

    @abstractmethod
    def _num_scales(self, entries: Tensor) -> Tensor:
        """Return how many scales `entries` codes have, int64 of the same shape."""

    @abstractmethod
    def _code_bytes(self, entries: Tensor) -> Tensor:
        """Return the bytes of the first `entries` [L] codes of each row, [L] int64."""

    @abstractmethod
    def _code_words(self, entries: int, row: int) -> str:
        """Return the arithmetic of the first `entries` codes of worker `row`."""

    @abstractmethod
    def _packed(self, codes: Tensor) -> Tensor:
        """Return codes [k] as uint8."""

    @abstractmethod
    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        """Return the `k` codes that `_packed` packed."""

    def on_wire(self, wire: Wire) -> Self:
        """Return the message as it is."""
        return self

    def to_dense(self) -> Tensor:
        """Return what the codes stand for, [L, n]."""
        decoder = self._compiled()
        if decoder is None:
            return self.values()
        from .code_kernels import stored

        return stored(decoder, self.codes.shape, self.dtype)

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        return one_element(*self.codes.shape, self.dtype, self.codes.device)

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]; on the CPU they are added one after the other."""
        decoder = self._compiled()
        if decoder is None:
            return in_order(self.values())
        from .code_kernels import added

        return added(decoder, self.codes.shape, self.dtype)

    def payload_bytes(self) -> Tensor:
        """Return the bytes of scales and codes, [L] int64."""
        if self.row_bytes is None:
            return self._own_bytes
        return for_each_row(self.row_bytes, self.codes)

    @property
    def row_bytes(self) -> int | None:
        """The bytes of scales and codes, where they follow from the number of codes."""
        if self.counts is not None or not self.fixed_length:
            return None
        settings = [(name, _of_shape(value)) for name, value in self._settings().items()]
        shape = type(self), self.codes.shape[1], *settings
        if shape not in _BYTES:
            _BYTES[shape] = int(self._counted_bytes(torch.tensor(self.codes.shape[1])))
        return _BYTES[shape]

    @property
    def fixed_length(self) -> bool:
        """Whether the bytes of a row follow from how many codes it has."""
        return True

    @cached_property
    def _own_bytes(self) -> Tensor:
        return self._counted_bytes(self.entries())

    def _counted_bytes(self, entries: Tensor) -> Tensor:
        return self._num_scales(entries) * _SCALE_BYTES + self._code_bytes(entries)

    def entries(self) -> Tensor:
        """Return the codes of each worker, [L] int64."""
        if self.counts is not None:
            return self.counts
        return for_each_row(self.codes.shape[1], self.codes)

    def explained(self, row: int) -> str:
        """Return scales and codes, each times their size."""
        k = self.entries()[row]
        scales, codes = int(self._num_scales(k)), self._code_words(int(k), row)
        return f"{term(scales, 'scale', 'scales', _SCALE_BYTES)} + {codes}" if scales else codes

    def pack(self, row: int) -> Tensor:
        """Return the scales, then the codes of worker `row`, uint8."""
        k = self.entries()[row]
        scales = value_bytes(self.scales[row, : int(self._num_scales(k))])
        return torch.cat([scales, self._packed(self.codes[row, : int(k)].cpu())])

    def header(self) -> Header:
        """Return n, the dtype of values, and the settings of the form."""
        return {"n": self.codes.shape[1], "dtype": self.dtype, "settings": self._settings()}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> Self:
        """Return the message of packed rows."""
        counts: Tensor | None = header.get("counts")
        nothing = torch.empty(0, 0)
        form = cls(nothing, nothing, header["dtype"], counts, **header["settings"])
        codes, scales = [], []
        for row, buffer in enumerate(buffers):
            k = torch.tensor(header["n"]) if counts is None else counts[row]
            cut = int(form._num_scales(k)) * _SCALE_BYTES
            scales.append(bytes_value(buffer[:cut], torch.float32))
            codes.append(form._unpacked(buffer[cut:], int(k)))
        return cls(_rows(codes), _rows(scales), header["dtype"], counts, **header["settings"])

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract what the codes stand for from `x` [L, n]."""
        decoder = self._compiled()
        if decoder is None or x.dtype != self.dtype or not compiled_loops.takes(x):
            x.sub_(self.to_dense())
            return
        from .code_kernels import subtract_

        subtract_(decoder, x)

    def _compiled(self) -> "Decoder | None":
        floats = self.dtype in (torch.float32, torch.float64)
        return self._decoder() if floats and compiled_loops.takes(self.codes) else None

    def clear_(self, x: Tensor) -> None:
        """Leave `x` as it is: nothing was selected."""

    @property
    def has_zero(self) -> bool:
        """Yes: code 0."""
        return True

    def spread(self, column: Tensor, width: int, counts: Tensor) -> Message:
        """Return the codes at other columns among `width`, and zeros between."""
        wide = self.codes.new_zeros(len(self.codes), width + 1)  # the last column: padding
        wide.scatter_(1, column, self.codes)
        return replace(self, codes=wide[:, :width], counts=counts)


def _of_shape(setting: object) -> object:
    """Return a setting of a form, of a tensor whether there is one."""
    return True if isinstance(setting, Tensor) else setting


def bits_to_bytes(bits: Tensor) -> Tensor:
    """Return the bytes that hold so many bits."""
    return (bits + 7) // 8


def one_if_any(entries: Tensor) -> Tensor:
    """Return 1 where there are entries, else 0, int64."""
    return (entries > 0).long()


def in_order(values: Tensor) -> Tensor:
    """Return the sum over rows of `values` [L, n], [n].

    `torch.sum` adds up some columns in one order and some in another, as threads share them.
    """
    if values.device.type != "cpu":
        return values.sum(0)
    first = torch.zeros(len(values), dtype=torch.int64)
    return torch.zeros_like(values[:1]).index_add_(0, first, values)[0]


def _rows(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)
