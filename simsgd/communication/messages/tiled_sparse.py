"""As many values of each tile of a segment, and their places in it.

Letters: L workers hosted here, n elements of one segment, T tiles of S elements, k kept of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..tiles import Tiling
from ..wire import index_bits, pack_index, unpack_index
from .contract import Header, term
from .dense import Dense
from .sparse import Sparse


@dataclass(frozen=True)
class TiledSparse(Sparse):
    """The k selected values of each tile and their places in the tile.

    `index` [L, T k] counts the elements tile by tile. With packed indices a place takes
    ceil(log2 S) bits, which is 12 for tiles of 64 x 64. Where tiles hold cosines, what was sent is
    what the coefficients stand for.
    """

    tiling: Tiling = field(default=Tiling(1, 1, 1, 1))

    @classmethod
    def of_tiles(cls, values: Tensor, place: Tensor, tiling: Tiling) -> "TiledSparse":
        """Return the message of values [L, T, k] at places [L, T, k] in their tiles, ascending."""
        begins = torch.arange(tiling.tiles, device=place.device) * tiling.size
        index = (place + begins.view(1, -1, 1)).flatten(1)
        n = tiling.tiles * tiling.size
        return cls(Dense.of(values.flatten(1)), index, n, tiling=tiling)

    def to_dense(self) -> Tensor:
        """Return what the values stand for, [L, n]."""
        return self._joined(super().to_dense())

    def sum(self) -> Tensor:
        """Return the sum over workers, [n]."""
        return self._joined(super().sum().unsqueeze(0))[0]

    def mean_of_senders(self) -> Tensor:
        """Return the mean of each element, or coefficient, over those who sent it, [n]."""
        return self._joined(super().mean_of_senders().unsqueeze(0))[0]

    def payload_bytes(self) -> Tensor:
        """Return the bytes of values and places, [L] int64."""
        return self.inner.payload_bytes() + (self.index.shape[1] * self._bits + 7) // 8

    @property
    def row_bytes(self) -> int | None:
        """The bytes of values and places, where the values' follow from their number."""
        values = self.inner.row_bytes
        return None if values is None else values + (self.index.shape[1] * self._bits + 7) // 8

    def explained(self, row: int) -> str:
        """Return the arithmetic of values and places."""
        k = self.index.shape[1]
        size = (self._bits, "bit") if self.coding == "packed" else (self._bits // 8, "B")
        return f"{self.inner.explained(row)} + {term(k, 'index', 'indices', *size)}"

    def pack(self, row: int) -> Tensor:
        """Return the places, then the values of worker `row`, uint8."""
        places = pack_index(self.index[row] % self._span, self._span, self.coding)
        return torch.cat([places, self.inner.pack(row).cpu()])

    def header(self) -> Header:
        """Return the tiling, the index coding, the number of entries, and the values' header."""
        return {**super().header(), "tiling": self.tiling}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "TiledSparse":
        """Return the message of packed rows."""
        n, coding, k, tiling = (header[name] for name in ("n", "coding", "k", "tiling"))
        kind, inner_header = header["inner"]
        nothing = torch.empty(0, 0)
        form = cls(Dense.of(nothing), nothing, n, coding, tiling=tiling)
        cut = (k * form._bits + 7) // 8
        index = torch.stack([unpack_index(b[:cut], form._span, k, coding) for b in buffers])
        if form._span != n:
            index += torch.arange(tiling.tiles).repeat_interleave(k // tiling.tiles) * tiling.size
        inner = kind.unpack([b[cut:] for b in buffers], {**inner_header, "counts": None})
        return cls(inner, index, n, coding, tiling=tiling)

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract what the values stand for from `x` [L, n]."""
        x.sub_(self.to_dense())

    def clear_(self, x: Tensor) -> None:
        """Zero the elements, or coefficients, of `x` [L, n] that were sent."""
        tiles = self.tiling.split(x).flatten(1)
        super().clear_(tiles)
        x.copy_(self._joined(tiles))

    def _joined(self, rows: Tensor) -> Tensor:
        return self.tiling.join(rows.unflatten(1, (self.tiling.tiles, self.tiling.size)))

    @property
    def _bits(self) -> int:
        return index_bits(self.coding, self._span)

    @property
    def _span(self) -> int:
        """How many elements an index as it is sent counts: those of a tile, or all."""
        return self.tiling.size if self.coding == "packed" else self.n

    @property
    def _may_need_fillers(self) -> bool:
        """No: something of each tile is sent."""
        return False
