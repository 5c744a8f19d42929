"""Moves the parameters along what came of an exchange.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from .components import Components
from .step_settings import StepSettings


def step_parameters(parts: Components, segments: Sequence[Tensor], settings: StepSettings) -> None:
    """Take a step of the optimizer along `segments`, [n] each, or [L, n] of models per worker.

    Penalties of the regime that are not in each worker's gradient are added here.
    """
    gradients = parts.layout.join(segments)
    parts.regularized.clip_(gradients, settings.regularizers, parts.parameters.per_worker)
    regularizers = () if settings.penalize_locally else settings.regularizers
    penalties = parts.regularized.penalty_gradients(regularizers, settings.own_decay)
    parts.optimizer.add_penalties(gradients, penalties, *settings.penalty_momentum)
    with _rows_kept(parts):
        parts.algorithm.apply(parts.optimizer, gradients)


@contextmanager
def _rows_kept(parts: Components) -> Iterator[None]:
    """Put back the models of workers that do not train in this round, after what is done within."""
    participants = parts.guard.participants
    if participants is None:
        yield
        return
    waits = (~participants[parts.hosted]).nonzero().flatten().to(parts.workers.device)
    kept = {name: p.detach()[waits] for name, p in parts.parameters.trained.items()}
    yield
    for name, p in parts.parameters.trained.items():
        p.detach().index_copy_(0, waits, kept[name])
