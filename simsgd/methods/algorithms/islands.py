"""Averaging within islands of workers that are drawn at random.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], H steps
from one exchange to the next, s workers of an island.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ...communication.messages import State
from ...communication.mixing import Mixing
from ...keyed_random import RandomKey
from ...recipe import Recipe
from ...registry import register
from ...settings import require
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm


@register("algorithm", "islands")
@dataclass(frozen=True)
class Islands(ParameterAlgorithm):
    """Every H steps the workers are divided at random into islands of s, each of which averages.

    x_i = mean over its island of C(x_j); a lossy compressor's error stays, as with dpsgd. Where s
    does not divide W, one island is smaller. With s = W it is local SGD.
    As `FederatedAveraging` of exogym, https://github.com/exo-explore/gym, has it.
    """

    island_size: int = 2  # s, at most W
    local_steps: int = 8  # H, at least 1
    final_exchange: bool = False  # also after the last step of a run
    has_own_memory = True

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "must be at least 1")
        require(self.island_size >= 1, "island_size", self.island_size, "must be at least 1")

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for islands that are larger than the world."""
        super().check(recipe)
        size = self.island_size
        rule = f"has island_size {size}, which must not exceed the {recipe.workers} workers"
        require(size <= recipe.workers, "algorithm", recipe.algorithm, rule)

    def period(self, epoch: int) -> int:
        """Return the steps from one exchange to the next."""
        return self.local_steps

    def links(self, seed: int, workers: int, step: int) -> Tensor:
        """Return whether two workers are of one island in a step, [W, W] bool."""
        return islands(seed, step // self.local_steps, workers, self.island_size).links

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Average within islands, if H steps have passed."""
        step = context.step
        if (step.number + 1) % self.local_steps and not (step.last and self.final_exchange):
            return None
        seed, round_ = step.key.seed, step.number // self.local_steps
        mixing = islands(seed, round_, context.workers, self.island_size)
        model = x.clone()
        message = context.compress(model)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, mixing)
        kept = mixing.own[context.channel.hosted].to(x).unsqueeze(1)  # [L, 1]
        x.sub_(sent.to_dense()).mul_(kept).add_(mixed)
        return Exchanged.of(model, sent)


@lru_cache(64)  # every segment of a step has the same
def islands(seed: int, number: int, workers: int, size: int) -> Mixing:
    """Return the weights of W workers divided at random into islands of `size`, in a round."""
    key = RandomKey(seed, torch.arange(workers)).fold_in("islands", number)
    order = key.uniform(1, torch.float64)[:, 0].argsort(stable=True)  # [W]
    weights = torch.zeros(workers, workers, dtype=torch.float64)
    for island in order.split(size):
        weights[island.unsqueeze(1), island] = 1 / len(island)
    return Mixing("islands", weights)
