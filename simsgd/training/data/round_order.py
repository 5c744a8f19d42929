"""Orders the samples of clients by rounds, which need not begin with an epoch.

Letters: W workers, N clients, b samples of a worker in a step, H steps of a round.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...methods.algorithms import Algorithm
from .partition import samples_in_order


class RoundOrder:
    """In each round a client begins again to go through its samples, in an order of that round."""

    def __init__(
        self, parts: Sequence[Tensor], algorithm: Algorithm, seed: int, batch: int
    ) -> None:
        self.parts = parts  # samples of each client, [m]
        self.algorithm = algorithm
        self.seed = seed
        self.batch = batch  # b
        self._round = lru_cache(2)(self._of_round)

    def batches(self, start: int, steps: int, epoch: int, workers: int) -> Tensor:
        """Return the samples of each global batch from step `start` on, [steps, W * b]."""
        period = self.algorithm.period(epoch)
        every = []
        for step in range(start, start + steps):
            within = step % period * self.batch
            rows = self._round(step - step % period, epoch, workers, period)  # [W, H * b]
            every.append(rows[:, within : within + self.batch].flatten())
        return torch.stack(every)

    def _of_round(self, step: int, epoch: int, workers: int, period: int) -> Tensor:
        """Return the samples that the workers take in the round that begins at a step, [W, H b].

        Where a client is done before the round is, the rest is its first sample again, and unused.
        """
        clients = self.algorithm.clients_of(self.seed, workers, step, epoch)
        ids = range(workers) if clients is None else clients.tolist()
        rows = []
        for client in ids:
            steps = self.algorithm.steps_in_round(client, epoch)
            place = self.seed, "round", step // period, client
            own = samples_in_order(self.parts[client], steps * self.batch, *place)
            rows.append(torch.cat([own, own[:1].expand((period - steps) * self.batch)]))
        return torch.stack(rows)
