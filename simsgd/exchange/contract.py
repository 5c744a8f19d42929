"""The contract of an exchange, a conversation between workers.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..compressors import Compressor
from ..draw import Draw
from ..layout import Segment
from ..messages import Message, State
from ..transport import Channel


class Exchange(ABC):
    """Who hears what of what is said."""

    parameters_per_worker: ClassVar[bool]  # workers hold models of their own, [L, *shape]

    @abstractmethod
    def gradients(
        self,
        said: Tensor,
        compressor: Compressor,
        state: State,
        draw: Draw,
        segment: Segment,
        channel: Channel,
    ) -> tuple[Message, Tensor]:
        """Exchange a segment before the optimizer's step.

        `said` [L, n] is what workers want to say and `state` the compressor's. Returns the message
        as it arrived, for the memory, and what is heard, [n] where parameters are shared.
        """
