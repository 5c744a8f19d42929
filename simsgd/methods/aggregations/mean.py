"""The mean over workers.

Letters: n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Message
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...registry import register
from .contract import Aggregation


@register("aggregation", "mean")
@dataclass(frozen=True)
class Mean(Aggregation):
    """The mean of the messages of all workers, by an all-reduce where messages can be summed."""

    elementwise = True
    is_mean = True

    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Return the messages, and their mean, [n]."""
        mean = channel.gather_mean if at_server else channel.all_reduce_mean
        return mean(message, segment)


def rule_for(rule: Aggregation, segment: Segment) -> Aggregation:
    """Return the rule of a segment: what is exempt from compression is averaged by most rules."""
    return rule if rule.takes_uncompressed or not segment.dense else _MEAN


_MEAN = Mean()
