"""The contract of a compressor.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..draw import Draw
from ..messages import Message, State


class Compressor(ABC):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    Row w of a call never depends on row v, so that worker w of a simulation is rank w of a real
    job: `compress(said)` of one worker alone is that worker's row.
    """

    biased: ClassVar[bool]  # E[message] differs from what was said: use it with a memory

    def init(self, like: Tensor) -> State:
        """Return the state before the first step for a segment like `like`, [L, n]."""
        return {}

    @abstractmethod
    def compress(self, said: Tensor, state: State, draw: Draw) -> Message:
        """Return the message for what workers want to say, [L, n], which stays unchanged."""
