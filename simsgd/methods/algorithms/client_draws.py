"""Which clients are drawn for a round, and how many steps each takes in it.

Letters: N clients, n_i samples of one of them, b samples of a step, E local epochs.
"""

from functools import lru_cache

import torch
from torch import Tensor

from ...keyed_random import RandomKey


@lru_cache(64)  # every segment of a step asks for the same
def draw_order(seed: int, number: int, clients: int) -> Tensor:
    """Return all N clients in an order of chance, [N] int64, of which a round draws the first."""
    key = RandomKey(seed, torch.arange(clients)).fold_in("participants", number)
    return key.uniform(1, torch.float64)[:, 0].argsort(stable=True)


def steps_of_epochs(samples: Tensor, epochs: int, batch: int) -> tuple[int, ...]:
    """Return ceil(E n_i / b): steps of each client to go E times through its `samples` [N].

    >>> steps_of_epochs(torch.tensor([5, 8, 1]), 2, 4)
    (3, 4, 1)
    """
    return tuple(-(-epochs * int(own) // batch) for own in samples)
