"""Send every entry as it is."""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Dense, Joined, State
from ...communication.messages.joined import dense_group
from ...registry import register
from .contract import Compressor, StepInfo
from .group import Group


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

    def compress_group(self, x: Tensor, group: Group) -> Joined:
        """Return all values, [L, P]."""
        return dense_group(group.cuts, Dense.of(x))
