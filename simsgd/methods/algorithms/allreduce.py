"""Every worker hears the mean of what all say, or what most of them vote for.

Letters: L workers hosted here, n elements of one segment, m of one message.
"""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...communication.messages import Dense, Message, SharedSparse, Sparse, State
from ...communication.segments import Segment
from ...registry import register
from ...settings import AGGREGATES, SettingError, require
from ..compressors import Compressor, MultiRound, composed
from ..compressors.contract import Aggregated, run_rounds
from .contract import ExchangeContext, GradientAlgorithm


@register("algorithm", "allreduce")
@dataclass(frozen=True)
class AllReduce(GradientAlgorithm):
    """Synchronous data-parallel SGD: parameters are shared, compressed gradients are aggregated.

    With `aggregate=vote` all hear the sign of the sum of signs, +1 where the votes are equal. What
    is exempt from compression is averaged all the same.

    With `downlink` a server gathers what all say, and its answer v = mean + e is compressed too,
    with a memory e = v - C(v) of its own: DoubleSqueeze.
    Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291;
    Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: Parallel Stochastic Gradient Descent with
    Double-pass Error-Compensated Compression", ICML 2019, https://arxiv.org/abs/1905.05957.
    """

    aggregate: str = "mean"  # mean, or vote: the sign of the sum of signs
    downlink: str = ""  # the server's compressor; nothing: no server
    parameters_per_worker = False

    def __post_init__(self) -> None:
        known = f"must be one of {', '.join(AGGREGATES)}"
        require(self.aggregate in AGGREGATES, "aggregate", self.aggregate, known)
        both = self.aggregate == "vote" and self.downlink != ""
        require(not both, "downlink", self.downlink, "has no effect on a vote, which is one bit")
        if self.downlink:
            talks = isinstance(self._downlink_compressor, MultiRound)
            rule = "talks with all workers, which a server's answer does not"
            require(not talks, "downlink", self.downlink, rule)

    @functools.cached_property
    def _downlink_compressor(self) -> Compressor:
        try:
            return composed(self.downlink)
        except SettingError as wrong:
            name = "downlink" if wrong.name == "compressor" else wrong.name
            raise SettingError(name, wrong.value, wrong.rule, wrong.fix) from wrong

    def check(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a vote of those who do not say a sign of every entry."""
        if self.aggregate != "vote":
            return
        talks = isinstance(compressor, MultiRound)
        require(not talks, "aggregate", "vote", "has no meaning for a conversation", _FIX)
        require(not _selects(compressor), "aggregate", "vote", _EVERY, _FIX)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the server's residual and its compressor's state, [1, n]; none without one."""
        if not self.downlink or segment.dense:
            return {}
        answer = self._answers(segment).init(x[:1])
        return {"residual": torch.zeros_like(x[:1]), **{_DOWN + k: v for k, v in answer.items()}}

    def _answers(self, segment: Segment) -> Compressor:
        return self._downlink_compressor.for_shape(segment.shape)

    def gradients(
        self, said: Tensor, speech: ExchangeContext, own: State | None = None
    ) -> tuple[Message, Tensor]:
        """Return the messages and their mean or the vote, [n]."""
        compressor, segment, channel = speech.compressor, speech.segment, speech.channel
        votes = self.aggregate == "vote" and not segment.dense
        if isinstance(compressor, MultiRound):
            require(not votes, "aggregate", "vote", "has no meaning for a conversation", _FIX)
            sent, heard = _talked(compressor, said, speech)
        else:
            step = speech.info
            if compressor.needs_global_max:
                step = replace(
                    step, global_max=channel.all_reduce_max(compressor.local_max(said), segment)
                )
            message = compressor.compress(said, speech.state, step)
            if votes:
                whole = not isinstance(message, Sparse | SharedSparse)
                require(whole, "aggregate", "vote", _EVERY, _FIX)
                return channel.vote(message, segment)
            mean = channel.gather_mean if self.downlink else channel.all_reduce_mean
            sent, heard = mean(message, segment)
        return sent, self._answered(heard, speech, own) if self.downlink else heard

    def _answered(self, heard: Tensor, speech: ExchangeContext, own: State | None) -> Tensor:
        """Return what the server's answer to all, `heard` [n], becomes on its way."""
        if not own:
            return speech.channel.broadcast(Dense.of(heard.unsqueeze(0)), speech.segment)[1]
        state = {k.removeprefix(_DOWN): v for k, v in own.items() if k.startswith(_DOWN)}
        said = own["residual"].add_(heard)  # [1, n]
        message = self._answers(speech.segment).compress(
            said, state, replace(speech.info, key=speech.server, gradient=None, squares=None)
        )
        sent, answer = speech.channel.broadcast(message, speech.segment)
        answer = answer.clone()  # it may be the residual itself
        sent.subtract_from_(own["residual"])
        own.update({_DOWN + k: v for k, v in state.items()})
        return answer


_DOWN = "downlink "  # before the names of the server's compressor's state
_EVERY = "needs a vote on every entry"
_FIX = "use a compressor that sends every entry, as sign does"


def _selects(compressor: Compressor) -> bool:
    """Return whether only some entries of a small matrix are sent."""
    return isinstance(compressor.probe(), Sparse | SharedSparse)


def _talked(
    compressor: MultiRound, said: Tensor, speech: ExchangeContext
) -> tuple[Message, Tensor]:
    def carry(message: Message) -> Aggregated:
        sent, mean = speech.channel.all_reduce_mean(message, speech.segment)
        return sent, mean.unsqueeze(0)  # [1, m]

    rounds = compressor.rounds(said, speech.state, speech.info)
    message, heard = run_rounds(rounds, carry)
    return message, heard.squeeze(0)
