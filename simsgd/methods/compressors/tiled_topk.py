"""Send the largest entries of each tile of a matrix, or of its cosines.

Letters: L workers hosted here, n elements of one segment, T tiles of S elements, k kept of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from ...communication.messages import State, TiledSparse
from ...communication.tiles import Tiling
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError
from .contract import Compressor, StepInfo
from .topk_selection import largest


@register("compressor", "tiled_topk")
@dataclass(frozen=True)
class TiledTopK(Compressor):
    """Each worker sends the k largest entries by magnitude of every tile of a matrix.

    The sides of a tile are the largest divisors of the matrix's that do not exceed `tile`; a tensor
    of more dimensions is the matrix [first, others], one of a single dimension is cut into pieces
    of at most `tile`, and of a smaller tile all is sent. With `basis=dct` each tile is turned into
    the coefficients of an orthonormal two-dimensional DCT-II, of which the k largest go. With
    index-dtype packed an index takes the bits of a place in the tile, 12 for 64 x 64. Biased: use
    it with a memory.
    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
    https://arxiv.org/abs/2411.19870; without cosines, Sarfi, Therien, Lidin, Belilovsky,
    "Communication Efficient LLM Pre-training with SparseLoCo", 2025,
    https://arxiv.org/abs/2508.15706.

    Differs from the papers: of equal magnitudes the lowest index goes.
    """

    k: int  # entries of each tile that are sent, at least 1
    tile: int = 64  # the longest side of a tile, 1 to 128
    basis: str | None = None  # none: the entries themselves; dct: cosines
    shape: tuple[int, ...] = field(default=(), repr=False, metadata=NOT_A_SETTING)  # of the segment
    biased = True

    def __post_init__(self) -> None:
        for name, value, most in (("k", self.k, 128 * 128), ("tile", self.tile, 128)):
            if isinstance(value, bool) or not 1 <= value <= most:
                raise SettingError(name, value, f"must be a whole number from 1 to {most}")
        if self.basis not in (None, "dct"):
            raise SettingError("basis", self.basis, "must be none or dct")

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method for a segment that is one parameter of this shape."""
        return replace(self, shape=tuple(shape))

    def compress(self, x: Tensor, state: State, step: StepInfo) -> TiledSparse:
        """Return the k largest entries of each tile of `x` [L, n]."""
        tiling = Tiling.of(self.shape or x.shape[1:], self.tile, self.basis == "dct")
        tiles = tiling.split(x)  # [L, T, S]
        place = largest(tiles.flatten(0, 1), min(self.k, tiling.size)).view(*tiles.shape[:2], -1)
        return TiledSparse.of_tiles(tiles.gather(2, place), place, tiling)
