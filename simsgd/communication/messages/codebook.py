"""Few bits a value, which stand for what a table says.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..wire import pack_bits, unpack_bits
from .contract import Header, term
from .quantized import Quantized, bits_to_bytes, one_if_any

if TYPE_CHECKING:
    from .code_kernels import Decoder


@dataclass(frozen=True)
class Codebook(Quantized):
    """Codes from 0 to 2^bits - 1, and a row's table of what they stand for.

    Without a `table` the scales are a shift and what each code adds to it, 1 + 2^bits of them. With
    one, which both ends know, the only scale is what its numbers are multiples of.
    """

    bits: int
    table: tuple[float, ...] | None = None

    def values(self) -> Tensor:
        """Return the number of each code, [L, n]."""
        if not self.codes.numel() or not self.scales.shape[1]:  # of rows without entries
            return torch.zeros(self.codes.shape, dtype=self.dtype, device=self.codes.device)
        dense = self._numbers().gather(1, self.codes.long())
        if self.counts is not None:
            place = torch.arange(dense.shape[1], device=dense.device)
            dense.mul_(place < self.counts.unsqueeze(1))
        return dense

    @property
    def has_zero(self) -> bool:
        """Whether code 0 stands for 0."""
        return self.table is not None and self.table[0] == 0

    def _numbers(self) -> Tensor:
        """Return what each code of a row stands for, [L, 2^bits]."""
        scales = self.scales.to(self.dtype)
        if self.table is None:
            return scales[:, :1] + scales[:, 1:]
        return scales * torch.tensor(self.table, dtype=self.dtype, device=scales.device)

    def _decoder(self) -> "Decoder | None":
        """Return the compiled form of `values`."""
        if not self.scales.shape[1]:
            return None
        from .code_kernels import looked_up

        return looked_up(self.codes, self._numbers(), self.counts)

    def _settings(self) -> Header:
        return {"bits": self.bits, "table": self.table}

    def _num_scales(self, entries: Tensor) -> Tensor:
        return one_if_any(entries) * (1 if self.table else 1 + 2**self.bits)

    def _code_bytes(self, entries: Tensor) -> Tensor:
        return bits_to_bytes(entries * self.bits)

    def _code_words(self, entries: int, row: int) -> str:
        return term(entries, "code", "codes", self.bits, "bit")

    def _packed(self, codes: Tensor) -> Tensor:
        return pack_bits(codes, self.bits)

    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        return unpack_bits(buffer, self.bits, k).to(torch.uint8)
