"""The contract of a compressor.

Letters: L workers hosted here, n elements of one segment, k selected.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from torch import Tensor

from ..draw import Draw
from ..messages import Message, State


class Compressor(ABC):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    Row w of a call never depends on row v, so that worker w of a simulation is rank w of a real
    job: `compress(said)` of one worker alone is that worker's row.
    """

    biased: ClassVar[bool]  # E[message] differs from what was said: use it with a memory
    needs_squares: ClassVar[bool] = False  # wants state["squares"], see `sample_squares`

    def fitted(self, shape: Sequence[int]) -> Self:
        """Return the method for a segment that is one parameter of this shape.

        A segment of several parameters has the shape (n,).
        """
        return self

    def init(self, like: Tensor) -> State:
        """Return the state before the first step for a segment like `like`, [L, n]."""
        return {}

    def ask(self, said: Tensor) -> Tensor | None:
        """Return a number of each worker, [L, 1], if the method wants to know the largest of all.

        The answer, [1, 1], is in state["shared"] when `compress` is called. The question is sent
        and counted.
        """
        return None

    @abstractmethod
    def compress(self, said: Tensor, state: State, draw: Draw) -> Message:
        """Return the message for what workers want to say, [L, n], which stays unchanged."""


class Quantiser(Compressor):
    """Sends every entry in few bits; it also takes what a sparsifier selected."""

    def compress(self, said: Tensor, state: State, draw: Draw) -> Message:
        """Return the message for all entries of `said` [L, n]."""
        return self.quantise(said, None, state, draw)

    @abstractmethod
    def quantise(self, values: Tensor, counts: Tensor | None, state: State, draw: Draw) -> Message:
        """Return the message for the first counts[w] entries of each row of `values` [L, k].

        `counts` [L] int64, None for all k; the other entries are padding of value 0, which neither
        counts in a mean nor is sent.
        """
