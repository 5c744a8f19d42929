"""Cuts a matrix into two-dimensional tiles, which may be turned into cosines.

Letters: L workers hosted here, n elements of one segment, T tiles of S elements each.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tiling:
    """How the rows [n] of a segment lie in T tiles of `height` x `width` elements."""

    down: int  # tiles below each other
    height: int
    across: int  # tiles beside each other
    width: int
    cosines: bool = False  # tiles hold the coefficients of an orthonormal DCT-II

    @classmethod
    def of(cls, shape: Sequence[int], side: int, cosines: bool = False) -> "Tiling":
        """Return the tiles of a tensor whose sides are the largest divisors up to `side`.

        A tensor of several dimensions is the matrix [first, all others], one of a single dimension
        is cut into pieces.

        >>> Tiling.of((128, 256), 64), Tiling.of((30,), 8)  # doctest: +NORMALIZE_WHITESPACE
        (Tiling(down=2, height=64, across=4, width=64, cosines=False),
         Tiling(down=1, height=1, across=5, width=6, cosines=False))
        """
        rows, cols = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        height, width = _divisor(rows, side), _divisor(cols, side)
        return cls(rows // height, height, cols // width, width, cosines)

    @property
    def tiles(self) -> int:
        """How many tiles there are, T."""
        return self.down * self.across

    @property
    def size(self) -> int:
        """Elements of a tile, S."""
        return self.height * self.width

    def split(self, x: Tensor) -> Tensor:
        """Return the tiles of the rows `x` [L, n], [L, T, S]."""
        grid = x.view(len(x), self.down, self.height, self.across, self.width)
        tiles = grid.transpose(2, 3)  # [L, down, across, height, width]
        if self.cosines:
            tiles = _cosines(self.height, x) @ tiles @ _cosines(self.width, x).mT
        return tiles.reshape(len(x), self.tiles, self.size)

    def join(self, tiles: Tensor) -> Tensor:
        """Return the rows [L, n] whose tiles are `tiles` [L, T, S]."""
        grid = tiles.view(len(tiles), self.down, self.across, self.height, self.width)
        if self.cosines:
            grid = _cosines(self.height, tiles).mT @ grid @ _cosines(self.width, tiles)
        return grid.transpose(2, 3).reshape(len(tiles), -1)


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n up to `most`."""
    return next(side for side in range(min(n, most), 0, -1) if n % side == 0)


def _cosines(n: int, like: Tensor) -> Tensor:
    return _matrix(n, like.dtype, like.device)


@functools.lru_cache(64)
def _matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II, [n, n]: row k holds cos(pi (2 i + 1) k / 2 n), scaled."""
    place = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi * (2 * place + 1) * place.unsqueeze(1) / (2 * n))
    matrix *= math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device, dtype)
