"""Every worker hears the mean of what all say, or what most of them vote for.

Letters: L workers hosted here, n elements of one segment, m of one message.
"""

from dataclasses import dataclass

from torch import Tensor

from ..compressors import Compressor, Conversation
from ..compressors.contract import Answer, converse
from ..draw import Draw
from ..layout import Segment
from ..messages import Message, SharedSparse, Sparse, State
from ..registry import register
from ..settings import AGGREGATES, require
from ..transport import Channel
from .contract import Exchange


@register("exchange", "allreduce")
@dataclass(frozen=True)
class AllReduce(Exchange):
    """Synchronous data-parallel SGD: parameters are shared, compressed gradients are aggregated.

    With `aggregate=vote` all hear the sign of the sum of signs, +1 where the votes are equal. What
    is exempt from compression is averaged all the same.
    Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291.
    """

    aggregate: str = "mean"  # mean, or vote: the sign of the sum of signs
    parameters_per_worker = False

    def __post_init__(self) -> None:
        known = f"must be one of {', '.join(AGGREGATES)}"
        require(self.aggregate in AGGREGATES, "aggregate", self.aggregate, known)

    def gradients(
        self,
        said: Tensor,
        compressor: Compressor,
        state: State,
        draw: Draw,
        segment: Segment,
        channel: Channel,
    ) -> tuple[Message, Tensor]:
        """Return the messages and their mean or the vote, [n]."""
        votes = self.aggregate == "vote" and not segment.dense
        if isinstance(compressor, Conversation):
            require(not votes, "aggregate", "vote", "has no meaning for a conversation", _FIX)
            return _talked(compressor, said, state, draw, segment, channel)
        question = compressor.ask(said)
        if question is not None:
            state["shared"] = channel.largest(question, segment)
        message = compressor.compress(said, state, draw)
        if not votes:
            return channel.mean(message, segment)
        whole = not isinstance(message, Sparse | SharedSparse)
        require(whole, "aggregate", "vote", "needs a vote on every entry", _FIX)
        return channel.vote(message, segment)


_FIX = "use a compressor that sends every entry, as sign does"


def _talked(
    compressor: Conversation,
    said: Tensor,
    state: State,
    draw: Draw,
    segment: Segment,
    channel: Channel,
) -> tuple[Message, Tensor]:
    def carry(message: Message) -> Answer:
        sent, mean = channel.mean(message, segment)
        return sent, mean.unsqueeze(0)  # [1, m]

    message, heard = converse(compressor.rounds(said, state, draw), carry)
    return message, heard.squeeze(0)
