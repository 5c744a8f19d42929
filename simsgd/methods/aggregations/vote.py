"""A vote of all workers on the sign of each entry.

Letters: n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Message
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...registry import register
from .contract import Aggregation


@register("aggregation", "vote")
@dataclass(frozen=True)
class Vote(Aggregation):
    """The sign of the sum of signs, +1 where the votes are equal.

    Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291.
    """

    elementwise = True
    needs_every_entry = True

    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Return the messages, and what they vote for, +-1 each, [n]."""
        return channel.vote(message, segment)
