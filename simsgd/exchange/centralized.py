"""Every worker hears the mean of what all say.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ..compressors import Compressor
from ..draw import Draw
from ..layout import Segment
from ..messages import Message, State
from ..registry import register
from ..transport import Channel
from .contract import Exchange


@register("exchange", "allreduce")
@dataclass(frozen=True)
class AllReduce(Exchange):
    """Synchronous data-parallel SGD: parameters are shared, compressed gradients are averaged."""

    parameters_per_worker = False

    def gradients(
        self,
        said: Tensor,
        compressor: Compressor,
        state: State,
        draw: Draw,
        segment: Segment,
        channel: Channel,
    ) -> tuple[Message, Tensor]:
        """Return the messages and their mean, [n]."""
        question = compressor.ask(said)
        if question is not None:
            state["shared"] = channel.largest(question, segment)
        return channel.mean(compressor.compress(said, state, draw), segment)
