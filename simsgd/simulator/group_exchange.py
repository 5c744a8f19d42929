"""The exchange of all segments: those of a group at once, laid end to end.

For a group it does what `exchange_step.py` does for each segment, with the same messages and
states.

Letters: W workers, L hosted here, S segments, n elements of one of them, P of all.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..communication.cuts import adjacent, end_to_end
from ..communication.messages import Joined
from ..communication.transport import Channel, Exchange, fused
from ..gradients.contract import Tensors
from ..methods.algorithms import ExchangeContext, GradientAlgorithm, ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures, group_norms, measure_group, squared
from ..methods.compressors.group import Group, compressor_of
from .exchange_step import ExchangeStep, exchange_gradient, exchange_model
from .own_methods import without_draws
from .segment_state import SegmentState
from .state_groups import StateGroup, StateGroups

Exchanged = tuple[Tensor, SegmentMeasures]  # what the optimizer gets of a segment, and its measures


def exchange_gradients(
    step: ExchangeStep,
    groups: StateGroups,
    gradients: Sequence[Tensor],
    squares: Tensors | None = None,
) -> tuple[list[Tensor], list[SegmentMeasures]]:
    """Return what the optimizer gets for `gradients` [L, n], and the measures, by segment.

    Of a segment without any gradient nothing is sent: it gets none, and its memory stays; then all
    segments go one by one.
    """
    of_segment = {own.segment.name: g for own, g in zip(groups.states, gradients, strict=True)}

    def exchanged(group: StateGroup, channel: Channel) -> list[Exchanged]:
        own_step = replace(step, channel=channel)
        pieces = [of_segment[own.segment.name] for own in group.states]
        if len(pieces) > 1:
            return _exchanged(own_step, group, pieces)
        if step.unused.issuperset(group.segment.parameters):
            return [_nothing(group.states[0], pieces[0])]
        return [exchange_gradient(own_step, group.states[0], pieces[0], squares)]

    every = groups.of(step.flush, apart=bool(step.unused))
    with _without_draws(step, groups):
        found = fused(step.channel, [partial(exchanged, group) for group in every])
    results = {own[1].segment.name: own for some in found for own in some}
    in_order = [results[own.segment.name] for own in groups.states]
    measures = squared([measures for _, measures in in_order])
    return [aggregated for aggregated, _ in in_order], measures


def _without_draws(step: ExchangeStep, groups: StateGroups) -> AbstractContextManager[None]:
    own, device = [state.own for state in groups.states], step.key.workers.device
    return without_draws(own, step.channel.transport, device)


def _nothing(state: SegmentState, gradient: Tensor) -> Exchanged:
    empty = SegmentMeasures.empty(state.segment, len(gradient), gradient.device)
    return torch.zeros_like(gradient), empty


def _exchanged(
    step: ExchangeStep, group: StateGroup, gradients: Sequence[Tensor]
) -> list[Exchanged]:
    """Return what the optimizer gets for the `gradients` [L, n] of a group, and the measures."""
    algorithm, memory = group.states[0].algorithm, step.memory
    assert isinstance(algorithm, GradientAlgorithm)
    group.take()
    gradient = end_to_end(gradients)  # [L, P]
    context = _context(step, group, gradient)
    compensated = memory.compensate(gradient, group.memory_state)
    norms = group_norms(compensated, group.cuts)
    message, mean = algorithm.gradients(compensated, context, group.algorithm_state)
    assert isinstance(message, Joined)
    memory.update(compensated, message, group.memory_state)
    aggregated = memory.on_aggregate(mean, group.memory_state)
    members = group.segment.members
    measures = measure_group(members, compensated, norms, message, group.memory_state)
    group.put()
    return list(zip(group.cuts.split(aggregated), measures, strict=True))


@torch.no_grad()
def exchange_models(
    step: ExchangeStep,
    groups: StateGroups,
    models: Sequence[Tensor],
    averages: Iterable[Exchange[None]] = (),
) -> tuple[list[SegmentMeasures], bool]:
    """Exchange the workers' parameters `models` [L, n] of each segment, in place.

    Returns the measures, by segment, and whether anything was sent. Segments go together where
    their parameters lie end to end. Once anything is sent, `averages` go along.
    """
    of_segment = {own.segment.name: x for own, x in zip(groups.states, models, strict=True)}

    def exchanged(group: StateGroup, channel: Channel) -> list[SegmentMeasures]:
        own_step = replace(step, channel=channel)
        pieces = [of_segment[own.segment.name] for own in group.states]
        whole = adjacent(pieces) if len(pieces) > 1 else None
        if whole is not None:
            return _exchanged_models(own_step, group, whole)
        pairs = zip(group.states, pieces, strict=True)
        measures = [exchange_model(own_step, state, x) for state, x in pairs]
        return [own for own in measures if own is not None]

    def every() -> Iterator[Exchange[list[SegmentMeasures] | None]]:
        for group in groups.of(step.flush):
            yield partial(exchanged, group)
        if step.channel.ledger.transfers:
            yield from averages

    with _without_draws(step, groups):
        sent = [own for some in fused(step.channel, every()) for own in some or ()]
    found = {own.segment.name: own for own in squared(sent)}
    measures_of_all = [
        found.get(own.segment.name) or SegmentMeasures.empty(own.segment, len(x), x.device)
        for own, x in zip(groups.states, models, strict=True)
    ]
    return measures_of_all, bool(sent)


def _exchanged_models(step: ExchangeStep, group: StateGroup, x: Tensor) -> list[SegmentMeasures]:
    """Exchange a group's parameters `x` [L, P], in place; return the measures if any was sent."""
    algorithm = group.states[0].algorithm
    assert isinstance(algorithm, ParameterAlgorithm)
    group.take()
    sent = algorithm.parameters(x, _context(step, group), group.algorithm_state)
    measures = []
    if sent is not None:
        assert isinstance(sent.message, Joined)
        members = group.segment.members
        measures = measure_group(members, sent.compensated, sent.norms, sent.message, sent.left)
    group.put()
    return measures


def _context(
    step: ExchangeStep, group: StateGroup, gradient: Tensor | None = None
) -> ExchangeContext:
    """Return what an algorithm is handed for a group; `gradient` [L, P]."""
    pieces = [None] * len(group.states) if gradient is None else group.cuts.split(gradient)
    each = [step.context(own, piece) for own, piece in zip(group.states, pieces, strict=True)]
    first = each[0]
    known = Group(
        cuts=group.cuts,
        compressors=[own.compressor for own in each],
        states=[own.compressor_state for own in each],
        steps=[own.step for own in each],
    )
    return replace(
        first,
        compressor=compressor_of(known),
        compressor_state={},
        segment=group.segment,
        memory_state=group.memory_state,
        lr=step.lr_of(group.segment, group.states[0].like),
    )
