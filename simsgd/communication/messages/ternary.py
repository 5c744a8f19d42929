"""Minus one, nothing or plus one times a scale.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..wire import pack_signed, unpack_signed
from .contract import Header, term
from .quantized import Quantized, bits_to_bytes, one_if_any

if TYPE_CHECKING:
    from .code_kernels import Decoder

_TRITS = 5  # in one byte: 3^5 = 243
_POWERS = torch.tensor([1, 3, 9, 27, 81])


@dataclass(frozen=True)
class Ternary(Quantized):
    """Codes -1, 0, 1, times the row's one scale, or one that all workers already share.

    Coded in 2 bits each, or, in base 3, five in a byte.
    """

    coding: str  # 2bit or base3
    shared: Tensor | None = None  # [1, 1] float32, known to all and not sent; `scales` is [L, 0]

    def values(self) -> Tensor:
        """Return codes times scale, [L, n]."""
        scale = self.scales if self.shared is None else self.shared
        return self.codes * scale.to(self.dtype)

    def _decoder(self) -> "Decoder | None":
        """Return the same, compiled."""
        from .code_kernels import multiples

        scale = self.scales if self.shared is None else self.shared
        scale = scale.to(self.dtype)
        if scale.shape[1] == 0:  # of rows without entries
            return None
        return multiples(self.codes, scale.expand(len(self.codes), 1), self.codes.shape[1], 0)

    def _settings(self) -> Header:
        return {"coding": self.coding, "shared": self.shared}

    def _num_scales(self, entries: Tensor) -> Tensor:
        return one_if_any(entries) * (self.shared is None)

    def _code_bytes(self, entries: Tensor) -> Tensor:
        if self.coding == "2bit":
            return bits_to_bytes(2 * entries)
        return (entries + _TRITS - 1) // _TRITS

    def _code_words(self, entries: int, row: int) -> str:
        if self.coding == "2bit":
            return term(entries, "code", "codes", 2, "bit")
        return term(-(-entries // _TRITS), "five of codes", "fives of codes", 1)

    def _packed(self, codes: Tensor) -> Tensor:
        if self.coding == "2bit":
            return pack_signed(codes, 2)
        digits = torch.zeros(-(-len(codes) // _TRITS) * _TRITS, dtype=torch.int64)
        digits[: len(codes)] = codes + 1
        return (digits.view(-1, _TRITS) * _POWERS).sum(1).to(torch.uint8)

    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        if self.coding == "2bit":
            return unpack_signed(buffer, 2, k, torch.int8)
        digits = buffer.cpu().long().unsqueeze(1) // _POWERS % 3  # [bytes, 5]
        return (digits.flatten()[:k] - 1).to(torch.int8)
