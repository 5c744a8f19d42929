"""What becomes of the workers' buffers when they exchange models.

Letters: W workers, L hosted here, n numbers of one dtype.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..communication.messages import Dense
from ..communication.segments import Segment
from ..communication.transport import Channel, Exchange
from .components import Components
from .running_state import RunningState


def restore_buffers(state: RunningState) -> None:
    """Put back the server's buffers."""
    state.buffers |= {name: own.clone() for name, own in state.server_buffers.items()}


def buffer_averages(parts: Components, state: RunningState) -> Iterator[Exchange[None]]:
    """Yield the exchanges that average the buffers of those who train, if the algorithm asks.

    They are sent as the models are, and their bytes are counted: a message for each dtype. States
    that the model carries from sample to sample are left alone.
    """
    if parts.algorithm.client_buffers != "average":
        return
    weights = parts.algorithm.weights(
        parts.recipe.seed, parts.recipe.workers, state.steps, state.epoch or 0, parts.samples
    )
    assert weights is not None
    for names in _by_dtype(state):
        yield partial(_average, state, names, weights)


def _average(
    state: RunningState, names: tuple[str, ...], weights: Tensor, channel: Channel
) -> None:
    """Give all workers the mean of buffers of one dtype."""
    shapes = tuple(state.buffers[name].shape[1:] for name in names)
    flat = torch.cat([_flat(state.buffers[name]) for name in names], dim=1)  # [L, n]
    dtype = str(flat.dtype).removeprefix("torch.")
    segment = Segment(f"buffers ({dtype})", names, shapes, dense=True)
    values = flat if flat.is_floating_point() else flat.double()  # 8 bytes, as int64
    _, mean = channel.weighted_mean(Dense.of(values), segment, weights)
    _write(state, names, (mean if flat.is_floating_point() else mean.round()).to(flat.dtype))


def _by_dtype(state: RunningState) -> list[tuple[str, ...]]:
    groups: dict[torch.dtype, list[str]] = {}
    for name, own in state.buffers.items():
        if name not in state.initial:
            groups.setdefault(own.dtype, []).append(name)
    return [tuple(names) for names in groups.values()]


def _write(state: RunningState, names: tuple[str, ...], mean: Tensor) -> None:
    """Give all workers the buffers that lie end to end in `mean` [n]."""
    parts = mean.split([state.buffers[name][0].numel() for name in names])
    for name, part in zip(names, parts, strict=True):
        own = state.buffers[name]
        own.copy_(part.view(own.shape[1:]).expand_as(own))


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), -1)  # also of scalars, [L]
