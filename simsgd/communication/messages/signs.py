"""One bit a value.

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
class Signs(Quantized):
    """Whether each value is negative (code 1), and what the two kinds stand for.

    `scales` has `num_scales` columns: none for -1 and +1, one, s, for -s and +s, or two, the
    value of the negatives and that of the rest.
    """

    num_scales: int  # 0, 1 or 2

    def values(self) -> Tensor:
        """Return the value of each sign, [L, n]."""
        negative, other = self._two()
        dense = torch.where(self.codes.bool(), negative, other)  # [L, n]
        if self.counts is not None:
            place = torch.arange(dense.shape[1], device=dense.device)
            dense.mul_(place < self.counts.unsqueeze(1))
        return dense

    @property
    def has_zero(self) -> bool:
        """No: a bit has no room for a zero."""
        return False

    def _decoder(self) -> "Decoder | None":
        """Return the same, compiled."""
        from .code_kernels import halves

        negative, other = self._two()
        if negative.shape[1] == 0:  # of rows without entries
            return None
        return halves(self.codes, negative, other, self.counts)

    def _two(self) -> tuple[Tensor, Tensor]:
        if self.num_scales == 0:
            one = torch.ones(1, 1, dtype=self.dtype, device=self.codes.device)
            return -one, one
        scales = self.scales.to(self.dtype)
        if self.num_scales == 1:
            return -scales, scales
        return scales[:, :1], scales[:, 1:]

    def _settings(self) -> Header:
        return {"num_scales": self.num_scales}

    def _num_scales(self, entries: Tensor) -> Tensor:
        return one_if_any(entries) * self.num_scales

    def _code_bytes(self, entries: Tensor) -> Tensor:
        return bits_to_bytes(entries)

    def _code_words(self, entries: int, row: int) -> str:
        return term(entries, "code", "codes", 1, "bit")

    def _packed(self, codes: Tensor) -> Tensor:
        return pack_bits(codes, 1)

    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        return unpack_bits(buffer, 1, k).bool()
