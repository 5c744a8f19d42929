"""Send everything."""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Dense, State
from ...keyed_random import RandomKey
from ...registry import register
from .contract import Compressor


@register("compressor", "none")
@dataclass(frozen=True)
class NoCompression(Compressor):
    """Each worker sends its whole gradient."""

    biased = False

    def compress(self, said: Tensor, state: State, draw: RandomKey) -> Dense:
        """Return all values, [L, n]."""
        return Dense.of(said)
