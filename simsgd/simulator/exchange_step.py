"""The exchange of one segment in one step: memory, compressor, channel, memory.

Letters: W workers, L hosted here, n elements of one segment.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..communication.segments import Segment
from ..communication.transport import Channel
from ..gradients.contract import Tensors
from ..keyed_random import RandomKey
from ..methods.algorithms import ExchangeContext, GradientAlgorithm, ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures, measure, row_norms
from ..methods.compressors import StepInfo
from ..methods.compressors.none import NoCompression
from ..methods.memories import Memory
from .own_methods import unshared
from .segment_state import SegmentState


@dataclass(frozen=True)
class ExchangeStep:
    """What the exchanges of all segments in one step have in common."""

    channel: Channel
    memory: Memory
    key: RandomKey  # at this step
    number: int = 0  # steps done before this one
    epoch: int = 0
    last: bool = False  # of the run
    flush: bool = False  # send all that the memories hold, whatever the compressor
    samples: Tensor | None = None  # that each worker holds, [W]; None: as many as the others
    unused: frozenset[str] = frozenset()  # parameters that got no gradient from anybody
    lr: float = 1.0  # of the optimizer
    rates: Mapping[str, float] = field(default_factory=dict)  # of parameters that have their own

    def context(
        self,
        state: SegmentState,
        gradient: Tensor | None = None,
        squares: Tensors | None = None,
    ) -> ExchangeContext:
        """Return what an algorithm is handed for a segment, with the memory's state as it is.

        `gradient` [L, n] is the segment's, `squares` {name: [L, *shape]} those of the samples'
        gradients; a compressor gets what it needs of them.
        """
        compressor = NoCompression() if self.flush else state.compressor
        step = StepInfo(
            key=self.key.fold_in(state.segment.name),
            number=self.number,
            epoch=self.epoch,
            last=self.last,
            segment=state.segment.name,
            gradient=gradient if compressor.needs_gradient else None,
            squares=_joined(state, squares) if compressor.needs_squares else None,
        )
        return ExchangeContext(
            compressor=compressor,
            compressor_state=state.compressor_state,
            step=step,
            segment=state.segment,
            channel=self.channel,
            memory=self.memory,
            memory_state=state.memory_state,
            samples=self.samples,
            lr=self.lr_of(state.segment, state.like),
        )

    def lr_of(self, segment: Segment, like: Tensor) -> float | Tensor:
        """Return the learning rate of a segment, as `like` [n] where that of parameters differs."""
        rates = [self.rates.get(name, self.lr) for name in segment.parameters]
        if all(rate == rates[0] for rate in rates):
            return rates[0]
        sizes = torch.tensor([math.prod(shape) for shape in segment.shapes])
        return torch.tensor(rates, dtype=torch.float64).repeat_interleave(sizes).to(like)


def exchange_gradient(
    step: ExchangeStep, state: SegmentState, gradient: Tensor, squares: Tensors | None = None
) -> tuple[Tensor, SegmentMeasures]:
    """Return what the optimizer gets for a segment's `gradient` [L, n], and its measures unsquared.

    The former is [n] where parameters are shared, else [L, n].
    """
    if state.own is None:
        return _exchanged(step, state, gradient, squares)
    with state.own.looked_at(step.key.fold_in(state.segment.name), step.channel.transport):
        return _exchanged(step, state, gradient, squares)


def _exchanged(
    step: ExchangeStep, state: SegmentState, gradient: Tensor, squares: Tensors | None
) -> tuple[Tensor, SegmentMeasures]:
    assert isinstance(state.algorithm, GradientAlgorithm)
    memory, own = step.memory, state.own
    state.widen_memory()
    context = step.context(state, gradient, squares)
    compensated = memory.compensate(gradient, state.memory_state)
    compensated = state.algorithm.to_send(compensated, state.algorithm_state)
    if own is not None:
        own.check_compensated(compensated, gradient)
        own.try_compressor(context.compressor, compensated, context.step, state.compressor_state)
    norms = row_norms(compensated)
    version = 0 if own is None else compensated._version
    exchanged = state.algorithm.gradients(compensated, context, state.algorithm_state)
    if own is not None:
        own.check_gradients(exchanged, compensated, context)
        own.check_unchanged(compensated, version)
    message, mean = exchanged
    memory.update(compensated, message, state.memory_state)
    aggregated = memory.on_aggregate(mean, state.memory_state)
    if own is not None:
        own.check_aggregate(aggregated, mean)
        own.check_states(state.algorithm_state, state.compressor_state, state.memory_state)
        aggregated = unshared(aggregated, state.memory_state, state.algorithm_state)
    measures = measure(state.segment, compensated, norms, message, state.memory_state)
    state.round_memory()
    return aggregated, measures


def exchange_model(step: ExchangeStep, state: SegmentState, x: Tensor) -> SegmentMeasures | None:
    """Exchange a segment's parameters `x` [L, n], in place, and return its measures unsquared.

    None where nothing is sent in this step.
    """
    if state.own is None:
        return _exchanged_model(step, state, x)
    with state.own.looked_at(step.key.fold_in(state.segment.name), step.channel.transport):
        return _exchanged_model(step, state, x)


def _exchanged_model(step: ExchangeStep, state: SegmentState, x: Tensor) -> SegmentMeasures | None:
    assert isinstance(state.algorithm, ParameterAlgorithm)
    own = state.own
    state.widen_memory()
    context = step.context(state)
    if own is not None:
        own.try_compressor(context.compressor, x, context.step, state.compressor_state)
        own.try_memory(x, state.memory_state)
    before = None if own is None else own.before_exchange(x, state.algorithm_state)
    sent = state.algorithm.parameters(x, context, state.algorithm_state)
    if own is not None:
        own.check_parameters(sent, x)
        if sent is None:
            own.check_unsent(before, x, context)
        own.check_states(state.algorithm_state, state.compressor_state, state.memory_state)
    if sent is None:
        measures = None
    else:
        measures = measure(state.segment, sent.compensated, sent.norms, sent.message, sent.left)
    state.round_memory()
    return measures


def _joined(state: SegmentState, squares: Tensors | None) -> Tensor | None:
    if squares is None:
        return None
    parts = [squares[name] for name in state.segment.parameters]
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)
