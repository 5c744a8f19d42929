"""Synchronous data-parallel SGD: one gradient of the messages of all workers.

Letters: L workers hosted here, n elements of one segment, m of one message.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Dense, Message, Sparse, State
from ...communication.segments import Layout, Segment
from ...recipe import Recipe
from ...registry import is_own, register
from ...settings import SPARSE_COLLECTIVES, SettingError
from ..aggregations import Aggregation, aggregated_by, aggregation_of
from ..aggregations.mean import rule_for
from ..collectives import exchange_sparse, why_not_of, why_not_with
from ..compressors import Compressor, MultiRound, composed
from ..compressors.contract import Aggregated, run_rounds
from ..own_state import check_rows
from .contract import ExchangeContext, GradientAlgorithm


@register("algorithm", "allreduce")
@dataclass(frozen=True)
class AllReduce(GradientAlgorithm):
    """Synchronous data-parallel SGD: parameters are shared, compressed gradients are aggregated.

    `aggregate` is the rule that makes one gradient of the workers' messages; what is exempt from
    compression is averaged all the same, unless the rule takes it too.

    With `downlink` a server gathers the messages, and what it sends back, v = mean + e, is
    compressed too, with a memory e = v - C(v) of its own: DoubleSqueeze.

    `collective` is how the mean of messages of a few entries each is made: as they are, by an
    all-gather or a dense all-reduce; as the k largest entries of their sum, gtopk and oktopk; or
    at the places of one worker, cltk. What is rejected stays in the memory. auto takes for each
    segment what brings a worker the fewest bytes. simsgd/methods/collectives has the papers.

    Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: Parallel Stochastic Gradient Descent with
    Double-pass Error-Compensated Compression", ICML 2019, https://arxiv.org/abs/1905.05957.
    """

    aggregate: str = "mean"  # the rule's spec, of `simsgd list aggregations`
    downlink: str = ""  # the server's compressor; nothing: no server
    collective: str = "allgather"  # gtopk, oktopk, cltk, dense or auto, of a few entries each
    parameters_per_worker = False

    def __post_init__(self) -> None:
        is_mean = self._rule.is_mean  # refuses an unknown rule too
        if self.downlink and not is_mean:
            rule = f"has no effect with aggregate {self.aggregate}"
            raise SettingError("downlink", self.downlink, rule)
        self._check_downlink()
        if self.collective not in SPARSE_COLLECTIVES:
            rule = f"must be one of {', '.join(SPARSE_COLLECTIVES)}"
            raise SettingError("collective", self.collective, rule)
        if self._collects and (self.downlink or not is_mean):
            beside = "downlink" if self.downlink else f"aggregate {self.aggregate}"
            raise SettingError("collective", self.collective, f"has no effect with {beside}")

    def _check_downlink(self) -> None:
        """Raise `SettingError` for a compressor that needs more than what the server has."""
        if not self.downlink:
            return
        compressor = self._downlink_compressor
        if isinstance(compressor, MultiRound):
            rule = "needs several rounds with all workers; a downlink sends one message"
            raise SettingError("downlink", self.downlink, rule)
        if compressor.needs_gradient or compressor.needs_squares or compressor.needs_global_max:
            rule = "needs the gradients of workers; a downlink has their mean alone"
            raise SettingError("downlink", self.downlink, rule)

    @property
    def workers_send_alike(self) -> bool:  # type: ignore[override]
        """Whether nobody's bytes depend on what others send."""
        return self.collective in ("allgather", "dense")

    @property
    def _collects(self) -> bool:
        """Whether sparse messages go another way than an all-gather."""
        return self.collective != "allgather"

    @property
    def takes_groups(self) -> bool:  # type: ignore[override]
        """Whether there is no server with a memory, and no element looks at another."""
        return not self.downlink and self._rule.elementwise and not self._collects

    @property
    def takes_dense_groups(self) -> bool:  # type: ignore[override]
        """Whether what is sent whole is averaged, whatever becomes of a few entries."""
        return not self.downlink and self._rule.elementwise

    @functools.cached_property
    def _rule(self) -> Aggregation:
        return aggregation_of(self.aggregate)

    @functools.cached_property
    def _downlink_compressor(self) -> Compressor:
        try:
            return composed(self.downlink)
        except SettingError as wrong:
            name = "downlink" if wrong.name == "compressor" else wrong.name
            raise SettingError(name, wrong.value, wrong.rule, wrong.fix) from wrong

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for a number of workers that the rule cannot take."""
        super().check(recipe)
        self._rule.check_workers(recipe.workers)
        settings = recipe.workers, recipe.value_dtype, recipe.index_dtype
        self._check_collective(why_not_with(self.collective, *settings))

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm. Raises `SettingError` for segments that the rule cannot take."""
        self._rule.check_layout(layout)
        return self

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor whose messages the rule cannot take."""
        self._rule.check_compressor(compressor)
        if self._collects and isinstance(compressor, MultiRound):
            self._check_collective("has no effect on a compressor of several rounds")
        elif self._collects:
            self._check_collective(why_not_of(self.collective, compressor.probe()))

    def _check_collective(self, why_not: str) -> None:
        if why_not:
            fix = "leave it out for an all-gather"
            raise SettingError("collective", self.collective, why_not, fix)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the server's residual and its compressor's state, [1, n]; none without one."""
        if not self.downlink or segment.dense:
            return {}
        compressor_state = self._server_compressor(segment).init(x[:1])
        for part in filter(is_own, self._downlink_compressor.parts):
            check_rows("downlink", part, compressor_state, x[:1])
        down = {_DOWN + name: value for name, value in compressor_state.items()}
        return {"residual": torch.zeros_like(x[:1]), **down}

    def _server_compressor(self, segment: Segment) -> Compressor:
        return self._downlink_compressor.for_shape(segment.shape)

    def gradients(
        self, compensated: Tensor, context: ExchangeContext, state: State | None = None
    ) -> tuple[Message, Tensor]:
        """Return the messages and their mean or the vote, [n]."""
        compressor, segment, channel = context.compressor, context.segment, context.channel
        if isinstance(compressor, MultiRound):
            sent, aggregated = _in_rounds(compressor, compensated, context)
        else:
            step = context.step
            if compressor.needs_global_max:
                largest = channel.all_reduce_max(compressor.local_max(compensated), segment)
                step = dataclasses.replace(step, global_max=largest)
            message = compressor.compress(compensated, context.compressor_state, step)
            if self._collects and isinstance(message, Sparse) and not segment.dense:
                number = step.number
                return exchange_sparse(
                    self.collective, message, compensated, number, segment, channel
                )
            rule = rule_for(self._rule, segment)
            sent, aggregated = aggregated_by(rule, message, segment, channel, bool(self.downlink))
        if self.downlink:
            aggregated = self._sent_back(aggregated, context, state)
        return sent, aggregated

    def _sent_back(self, mean: Tensor, context: ExchangeContext, state: State | None) -> Tensor:
        """Return what workers get of the server's `mean` [n], as it arrives."""
        channel, segment = context.channel, context.segment
        if not state:
            return channel.broadcast(Dense.of(mean.unsqueeze(0)), segment)[1]
        own = {k.removeprefix(_DOWN): v for k, v in state.items() if k.startswith(_DOWN)}
        compensated = state["residual"].add_(mean)  # [1, n]
        step = dataclasses.replace(context.step, key=context.server_key)
        message = self._server_compressor(segment).compress(compensated, own, step)
        sent, arrived = channel.broadcast(message, segment)
        arrived = arrived.clone()  # it may be the residual itself
        sent.subtract_from_(state["residual"])
        state.update({_DOWN + k: v for k, v in own.items()})
        return arrived


_DOWN = "downlink "  # before the names of the server's compressor's state


def _in_rounds(
    compressor: MultiRound, compensated: Tensor, context: ExchangeContext
) -> tuple[Message, Tensor]:
    def carry(message: Message) -> Aggregated:
        sent, mean = context.channel.all_reduce_mean(message, context.segment)
        return sent, mean.unsqueeze(0)  # [1, m]

    rounds = compressor.rounds(compensated, context.compressor_state, context.step)
    message, mean = run_rounds(rounds, carry)
    return message, mean.squeeze(0)
