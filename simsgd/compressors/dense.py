"""Send everything."""

from dataclasses import dataclass

from torch import Tensor

from ..draw import Draw
from ..messages import Dense, State
from ..registry import register
from .contract import Compressor


@register("compressor", "none")
@dataclass(frozen=True)
class NoCompression(Compressor):
    """Each worker sends its whole gradient."""

    biased = False

    def compress(self, said: Tensor, state: State, draw: Draw) -> Dense:
        """Return all values, [L, n]."""
        return Dense.of(said)
