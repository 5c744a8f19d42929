"""Moves the parameters: a step of the optimizer, and an exchange of models.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from ..gradients.contract import Tensors
from ..methods.algorithms import ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures
from ..methods.own_errors import explained
from ..registry import is_own
from .client_buffers import buffer_averages, restore_buffers
from .client_pool import drawn_clients
from .components import Components
from .exchange_step import ExchangeStep
from .group_exchange import exchange_models
from .inner_state import inner_state_averages
from .own_methods import check_local_gradient
from .running_state import RunningState
from .step_settings import StepSettings


@torch.no_grad()
def local_gradients(parts: Components, segments: Sequence[Tensor]) -> list[Tensor]:
    """Return what the workers' optimizers step along, [L, n], for the gradients of each segment.

    That is the algorithm's to say, where workers have models of their own.
    """
    algorithm, participants = parts.algorithm, parts.guard.participants
    assert isinstance(algorithm, ParameterAlgorithm)
    device = parts.workers.device
    trains = None if participants is None else participants[parts.hosted].to(device)
    models = parts.parameters.segments(parts.layout)
    found = []
    for gradient, x, own in zip(segments, models, parts.segment_states, strict=True):
        local = algorithm.local_gradient(gradient, x, own.algorithm_state, trains)
        if is_own(algorithm):
            local = check_local_gradient(algorithm, local, gradient, own.algorithm_state)
        found.append(local)
    return found


def step_parameters(
    parts: Components,
    segments: Sequence[Tensor],
    settings: StepSettings,
    unused: frozenset[str],
    unused_rows: Tensors,
) -> None:
    """Take a step of the optimizer along `segments`, [n] each, or [L, n] of models per worker.

    Penalties of the regime that are not in each worker's gradient are added here. Parameters that
    nobody used are left alone, and so are the rows of workers that did not use one, {name: [L]}.
    """
    gradients = parts.layout.join(segments)
    parts.regularized.clip_(gradients, settings.regularizers, parts.parameters.per_worker)
    for name in unused:
        if not gradients[name].any():  # else a memory had something left
            del gradients[name]
    local = settings.penalize_locally
    decays = parts.regularized.decays(settings.own_decay, () if local else settings.decay_groups)
    regularizers = () if local else settings.regularizers
    penalties = parts.regularized.penalty_gradients(regularizers, decays)
    penalties = {name: own for name, own in penalties.items() if name in gradients}
    parts.optimizer.add_penalties(gradients, penalties, *settings.penalty_momentum)
    own = [("algorithm", parts.algorithm)] if is_own(parts.algorithm) else []
    with parts.optimizer.rows_kept(_idle_rows(parts, unused_rows)), explained(own):
        parts.algorithm.apply(parts.optimizer, gradients)


def exchange_parameters(
    parts: Components, state: RunningState, exchange: ExchangeStep
) -> list[SegmentMeasures]:
    """Exchange the workers' models, and with them buffers and what their optimizers keep.

    Returns the measures, by segment.
    """
    models = parts.parameters.segments(parts.layout)
    averages = chain(buffer_averages(parts, state), inner_state_averages(parts, state))
    measures, anything_sent = exchange_models(exchange, parts.groups, models, averages)
    if anything_sent:
        if parts.algorithm.client_buffers == "server":
            restore_buffers(state)
        if parts.algorithm.inner_state == "reset":
            parts.optimizer.reset()
        if state.clients is not None:
            clients = drawn_clients(parts, state.steps, state.epoch or 0)
            state.clients.put_back(parts, state.own_buffers, clients)
    return measures


def _idle_rows(parts: Components, unused: Tensors) -> Tensors:
    """Return which rows of each parameter take no step, {name: [L] bool}, of models per worker."""
    if not parts.parameters.has_models:
        return {}
    participants = parts.guard.participants
    if participants is None:
        return {name: own for name, own in unused.items() if own.any()}
    waits = ~participants[parts.hosted]
    return {name: waits | unused.get(name, waits) for name in parts.params}
