"""The mean of each entry over those workers that sent it.

Letters: n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Message
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...registry import register
from .contract import Aggregation


@register("aggregation", "senders")
@dataclass(frozen=True)
class Senders(Aggregation):
    """The mean of each entry over the workers that sent it, not over all of them.

    Where workers send few entries each, most are sent by one of them, and move by their full value.
    Of cosines it is the mean of each coefficient. With `sign=true` the sign of it, as of DeMo.
    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
    https://arxiv.org/abs/2411.19870.
    """

    elementwise = True

    sign: bool = False  # pass on the sign alone; 0 stays 0

    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Return the messages, and the mean over senders, [n]."""
        sent, mean = channel.mean_of_senders(message, segment)
        return sent, mean.sign() if self.sign else mean
