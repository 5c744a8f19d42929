"""What clients keep while nobody acts for them.

Workers act for other clients in each round. What has a row a worker, as memories and control
variates, is taken from here when a round begins, and put back when it ends.

Letters: W workers, L hosted here, N clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients.contract import Tensors
from ..methods.algorithms import ParameterAlgorithm
from ..settings import SettingError
from .components import Components


@dataclass(frozen=True)
class ClientPool:
    """The rows of all N clients, whether drawn or not, {name: [N, ...]}."""

    rows: Tensors

    @classmethod
    def of(cls, parts: Components, buffers: Tensors) -> "ClientPool | None":
        """Return what clients keep at the start; None if workers act for themselves alone.

        `buffers` {name: [L, *shape]} are the workers'. Raises `SettingError` for a memory that
        clients cannot have.
        """
        clients = parts.algorithm.clients
        if clients is None:
            return None
        if parts.memory.needs_mean_of_all:
            rule = "needs what all clients sent in every round, and few of them are drawn"
            raise SettingError("memory", parts.recipe.memory, rule, "use residual or none")
        held = _held(parts, buffers)
        return cls({name: _repeated(value[0], clients) for name, value in held})

    def take_out(self, parts: Components, buffers: Tensors, clients: Tensor) -> None:
        """Let the workers have what `clients`, ids [W], keep."""
        own = clients[parts.hosted]
        for name, value in _held(parts, buffers):
            value.copy_(self.rows[name][own.to(value.device)])

    def put_back(self, parts: Components, buffers: Tensors, clients: Tensor) -> None:
        """Keep what the workers have of `clients`, ids [W], in every process."""
        for name, value in _held(parts, buffers):
            rows = self.rows[name]
            rows[clients.to(rows.device)] = parts.transport.all_gather_rows(value)


@torch.no_grad()
def begin_round(
    parts: Components, pool: ClientPool | None, buffers: Tensors, step: int, epoch: int
) -> None:
    """Let the workers act for other clients, if a round begins with the step after `step`."""
    algorithm = parts.algorithm
    current = algorithm.round_of(parts.recipe.seed, parts.recipe.workers, step, epoch)
    if pool is None or step != current.begin:
        return
    assert isinstance(algorithm, ParameterAlgorithm)
    pool.take_out(parts, buffers, drawn_clients(parts, step, epoch))
    models = parts.parameters.segments(parts.layout)
    for own, x in zip(parts.segment_states, models, strict=True):
        algorithm.begin_round(x, own.algorithm_state)
    if algorithm.inner_state == "reset":
        parts.optimizer.reset()


def drawn_clients(parts: Components, step: int, epoch: int) -> Tensor:
    """Return the clients that the workers act for, ids [W]."""
    recipe = parts.recipe
    clients = parts.algorithm.clients_of(recipe.seed, recipe.workers, step, epoch)
    assert clients is not None
    return clients


def _held(parts: Components, buffers: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Yield by name what the workers have of a client, [L, ...] each."""
    for own in parts.segment_states:
        for place, name, value in own.rows():
            if name not in parts.algorithm.passing:
                yield f"{own.segment.name} {place} {name}", value
    if parts.algorithm.client_buffers == "local":
        yield from ((f"buffer {name}", value) for name, value in buffers.items())


def _repeated(row: Tensor, times: int) -> Tensor:
    """Return [times, ...] of `row`: zeros take no memory before they are written."""
    if not row.any():
        return row.new_zeros(times, *row.shape)
    return row.expand(times, *row.shape).clone()
