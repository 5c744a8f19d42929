"""Which clients are drawn for a round, and how many steps a round has.

Letters: N clients, n_i samples of one of them, b samples of a step, E local epochs.
"""

from bisect import bisect_right
from functools import lru_cache

import torch
from torch import Tensor

from ...keyed_random import RandomKey
from .contract import Round


@lru_cache(64)  # every segment of a step asks for the same
def draw_order(seed: int, number: int, clients: int) -> Tensor:
    """Return all N clients in an order of chance, [N] int64, of which a round draws the first."""
    key = RandomKey(seed, torch.arange(clients)).fold_in("participants", number)
    return key.uniform(1, torch.float64)[:, 0].argsort(stable=True)


def steps_of_epochs(samples: Tensor, epochs: int, batch: int) -> Tensor:
    """Return ceil(E n_i / b), [N]: steps of each client to go E times through its `samples` [N].

    >>> steps_of_epochs(torch.tensor([5, 8, 1]), 2, 4).tolist()
    [3, 4, 1]
    """
    return torch.tensor([-(-epochs * int(own) // batch) for own in samples])


class ClientRounds:
    """Rounds that last until the largest of the clients drawn is done."""

    def __init__(self, steps: Tensor, drawn: int) -> None:
        self.steps = steps  # of each client in a round, [N]
        self.drawn = drawn  # clients of a round
        self._ends: dict[int, list[int]] = {}  # of the rounds so far, by seed: steps done then

    def at(self, seed: int, step: int) -> Round:
        """Return the round of a step, which is how many were done before it."""
        ends = self._ends.setdefault(seed, [])
        while not ends or ends[-1] <= step:
            chosen = draw_order(seed, len(ends), len(self.steps))[: self.drawn]
            ends.append((ends[-1] if ends else 0) + int(self.steps[chosen].max()))
        number = bisect_right(ends, step)
        begin = ends[number - 1] if number else 0
        return Round(number, begin, ends[number] - begin)
