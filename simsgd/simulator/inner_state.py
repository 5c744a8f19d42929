"""The mean of what the workers' own optimizers keep, when they exchange models.

Letters: W workers, L hosted here, m numbers that are kept of a parameter.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ..communication.messages import Dense
from ..communication.segments import Segment
from ..communication.transport import Channel, Exchange
from .components import Components
from .optimizer import KeptState
from .running_state import RunningState


def inner_state_averages(parts: Components, state: RunningState) -> Iterator[Exchange[None]]:
    """Yield the exchanges that average momenta and the like, if the algorithm asks for it.

    They are sent whole, and their bytes are counted: a message for each parameter.
    """
    if parts.algorithm.inner_state != "average":
        return
    weights = parts.algorithm.weights(
        parts.recipe.seed, parts.recipe.workers, state.steps, state.epoch or 0, parts.samples
    )
    for kept in parts.optimizer.kept_states(parts.transport.all_gather_rows):
        yield partial(_average, kept, weights)


def _average(kept: KeptState, weights: Tensor | None, channel: Channel) -> None:
    """Let all workers go on from the mean of what is kept of a parameter."""
    shapes = (kept.rows.shape[1:],)
    segment = Segment(f"{kept.name} (optimizer)", (kept.name,), shapes, dense=True)
    message = Dense.of(kept.rows)
    if weights is None:
        mean = channel.all_reduce_mean(message, segment)[1]
    else:
        mean = channel.weighted_mean(message, segment, weights)[1]
    kept.set_all(mean)
