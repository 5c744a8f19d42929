"""What becomes of the state of the workers' own optimizers when they exchange models.

Letters: W workers, L hosted here, m numbers that are kept of a parameter.
"""

import torch
from torch import Tensor

from ..communication.messages import Dense
from ..communication.segments import Segment
from .components import Components
from .running_state import RunningState


@torch.no_grad()
def exchange_inner_state(parts: Components, state: RunningState) -> None:
    """Keep momenta and the like, drop them, or average them, as the algorithm asks.

    A mean is sent whole, and its bytes are counted: a message for each parameter.
    """
    how = parts.algorithm.inner_state
    if how == "reset":
        parts.optimizer.reset()
    if how != "average":
        return
    weights = parts.algorithm.weights(
        parts.recipe.seed, parts.recipe.workers, state.steps, state.epoch or 0, parts.samples
    )

    def mean(name: str, rows: Tensor) -> Tensor:  # [m] of [L, m]
        segment = Segment(f"{name} (optimizer)", (name,), (rows.shape[1:],), dense=True)
        message = Dense.of(rows)
        if weights is None:
            return parts.channel.all_reduce_mean(message, segment)[1]
        return parts.channel.weighted_mean(message, segment, weights)[1]

    parts.optimizer.average(mean, parts.transport.all_gather_rows)
