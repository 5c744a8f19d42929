"""Signed whole multiples of a step, one step size a bucket.

Letters: L workers hosted here, n elements of one segment, s levels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import elias_gamma as elias
from ..wire import pack_signed, unpack_signed
from .contract import Header, term
from .quantized import Quantized, bits_to_bytes, one_if_any

if TYPE_CHECKING:
    from .code_kernels import Decoder


@dataclass(frozen=True)
class Levels(Quantized):
    """Codes from -s to s; code c in a bucket of scale r stands for c / s * r.

    `scales` has one column a bucket. A code takes a bit for the sign and the bits of a number up to
    s, or the row is one Elias stream, see `elias_gamma.py`.
    """

    levels: int  # s
    bucket: int | None = None  # values to a scale; None: the whole row
    coding: str = "fixed"  # fixed or elias
    stream_bits: Tensor | None = None  # of each row's Elias stream, [L] int64, where known

    def values(self) -> Tensor:
        """Return codes / s * scale, [L, n]."""
        scale = self.scales.to(self.dtype)
        n = self.codes.shape[1]
        if self.bucket is not None:
            scale = scale.repeat_interleave(self.bucket, dim=1)[:, :n]  # [L, n]
        steps = torch.full((1, 1), self.levels, dtype=self.dtype, device=scale.device)
        return self.codes.to(self.dtype).div_(steps) * scale

    @property
    def has_zero(self) -> bool:
        """Whether the row is one bucket; zeros would move the borders of several."""
        return self.bucket is None

    def _decoder(self) -> "Decoder | None":
        """Return the same, compiled."""
        from .code_kernels import multiples

        n = self.codes.shape[1]
        bucket = n if self.bucket is None else self.bucket
        if self.scales.shape[1] * bucket < n:  # of a row without entries
            return None
        return multiples(self.codes, self.scales.to(self.dtype), bucket, self.levels)

    @property
    def fixed_length(self) -> bool:
        """Whether codes are not an Elias stream."""
        return self.coding != "elias"

    @property
    def bits(self) -> int:
        """Bits of a code of fixed length: 1 + ceil(log2(s + 1))."""
        return 1 + self.levels.bit_length()

    def _settings(self) -> Header:
        return {"levels": self.levels, "bucket": self.bucket, "coding": self.coding}

    def _num_scales(self, entries: Tensor) -> Tensor:
        if self.bucket is None:
            return one_if_any(entries)
        return (entries + self.bucket - 1) // self.bucket

    def _code_bytes(self, entries: Tensor) -> Tensor:
        if self.coding == "elias":
            known = self.stream_bits if self.counts is None else None
            return bits_to_bytes(elias.num_bits(self.codes) if known is None else known)
        return bits_to_bytes(entries * self.bits)

    def _code_words(self, entries: int, row: int) -> str:
        if self.coding == "elias":
            bits = int(elias.num_bits(self.codes[row : row + 1]))
            return f"1 stream of {entries:,} codes x {bits:,} bits"
        return term(entries, "code", "codes", self.bits, "bit")

    def _packed(self, codes: Tensor) -> Tensor:
        if self.coding == "elias":
            return elias.encode(codes)
        return pack_signed(codes, self.bits)

    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        if self.coding == "elias":
            return elias.decode(buffer, k).to(code_dtype(self.levels))
        return unpack_signed(buffer, self.bits, k, code_dtype(self.levels))


def code_dtype(levels: int) -> torch.dtype:
    """Return the smallest dtype that holds -s to s."""
    if levels <= 127:
        return torch.int8
    return torch.int16 if levels <= 32767 else torch.int32
