"""Powers of two, one byte a value.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..wire import bytes_value, value_bytes
from .contract import Header, term
from .quantized import Quantized

if TYPE_CHECKING:
    from .code_kernels import Decoder

LEAST, MOST = -108, 18  # exponents of the codes 1 and 127
NEGATIVE = 128  # added to the code of a negative value


@dataclass(frozen=True)
class Powers(Quantized):
    """A sign bit and 7 bits of exponent: code c, 1 to 127, is 2^(c - 109), code 0 is zero.

    The magnitudes reach from 2^-108 to 2^18. There is no scale: `scales` is [L, 0].
    """

    def values(self) -> Tensor:
        """Return the power of each code, [L, n]."""
        sizes = [0.0] + [2.0**e for e in range(LEAST, MOST + 1)]
        table = torch.tensor(sizes + [-size for size in sizes], dtype=self.dtype)
        table = table.to(self.codes.device)
        return table.index_select(0, self.codes.flatten().int()).view(self.codes.shape)

    def _decoder(self) -> "Decoder":
        """Return the same, compiled."""
        from .code_kernels import powers

        return powers(self.codes, self.dtype, LEAST)

    def _settings(self) -> Header:
        return {}

    def _num_scales(self, entries: Tensor) -> Tensor:
        return torch.zeros_like(entries)

    def _code_bytes(self, entries: Tensor) -> Tensor:
        return entries

    def _code_words(self, entries: int, row: int) -> str:
        return term(entries, "code", "codes", 1)

    def _packed(self, codes: Tensor) -> Tensor:
        return value_bytes(codes)

    def _unpacked(self, buffer: Tensor, k: int) -> Tensor:
        return bytes_value(buffer[:k], torch.uint8)
