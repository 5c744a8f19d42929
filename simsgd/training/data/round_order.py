"""Orders the samples of clients by rounds, which need not begin with an epoch.

Letters: W workers, N clients, b samples of a worker in a step, H steps of a round.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...methods.algorithms import Algorithm, Round
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
        every = []
        for step in range(start, start + steps):
            current = self.algorithm.round_of(self.seed, workers, step, epoch)
            within = (step - current.begin) * self.batch
            rows = self._round(current, epoch, workers)  # [W, H * b]
            every.append(rows[:, within : within + self.batch].flatten())
        return torch.stack(every)

    def _of_round(self, current: Round, epoch: int, workers: int) -> Tensor:
        """Return the samples that the workers take in a round, [W, H * b].

        Where a client is done before the round is, the rest is its first sample again, and unused.
        """
        clients = self.algorithm.clients_of(self.seed, workers, current.begin, epoch)
        rows = []
        for client in range(workers) if clients is None else clients.tolist():
            steps = min(current.steps, self.algorithm.steps_of(client, current))
            place = self.seed, "round", current.number, client
            own = samples_in_order(self.parts[client], steps * self.batch, *place)
            rows.append(torch.cat([own, own[:1].expand((current.steps - steps) * self.batch)]))
        return torch.stack(rows)
