"""Send every entry as it is."""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Dense, State
from ...registry import register
from .contract import Compressor, StepInfo


@register("compressor", "none")
@dataclass(frozen=True)
class NoCompression(Compressor):
    """Each worker sends its whole gradient."""

    biased = False
    selects = False
    compresses = False

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Dense:
        """Return all values, [L, n]."""
        return Dense.of(x)
