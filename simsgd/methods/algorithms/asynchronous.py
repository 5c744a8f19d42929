"""Asynchronous algorithms: workers do not wait for each other, and gradients arrive late.

Letters: W workers, L hosted here, n elements of one segment.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError
from .contract import ExchangeContext, GradientAlgorithm, OptimizerSteps


@register("algorithm", "async")
@dataclass(frozen=True)
class Asynchronous(GradientAlgorithm):
    """A parameter server that waits for nobody.

    In every step each worker pushes the gradient that it took at the model of `staleness` steps
    ago. The server applies each at once, one after the other in the order of workers, by an
    optimizer step of lr / W, and sends its model back. With staleness 0 and plain SGD this is
    allreduce; with momentum it is not, for the server's momentum decays at every push.
    Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012.
    """

    staleness: int | str = 1  # steps: a number for all, or uniform:N, each worker's own in 0 .. N
    parameters_per_worker = False
    computes_mean = False
    sized_by_shapes = False

    def __post_init__(self) -> None:
        self.longest_delay  # noqa: B018 - reads the setting, and refuses a wrong one

    @property
    def longest_delay(self) -> int:
        """The most steps that a gradient may be late."""
        read = re.fullmatch(r"(uniform:)?(\d+)", str(self.staleness), re.ASCII)
        rule = "must be a number of steps, or uniform:N"
        if read is None:
            raise SettingError("staleness", self.staleness, rule)
        return int(read[2])

    def delays(self, seed: int, workers: Tensor) -> Tensor:
        """Return how many steps late the gradients of `workers`, ids [L], are, [L] int64."""
        if not str(self.staleness).startswith("uniform"):
            return torch.full_like(workers, self.longest_delay)
        key = RandomKey(seed, workers).fold_in("staleness")
        return (key.uniform(1, torch.float64)[:, 0] * (self.longest_delay + 1)).long()

    def gradients(
        self, compensated: Tensor, context: ExchangeContext, state: State | None = None
    ) -> tuple[Message, Tensor]:
        """Return the messages, and what the server makes of each, [W, n]."""
        sent, pushed = context.channel.gather(context.compress(compensated), context.segment)
        context.channel.count_broadcast(compensated[0], context.segment)
        return sent, pushed

    def apply(self, optimizer: OptimizerSteps, aggregated: dict[str, Tensor]) -> None:
        """Move the parameters by a step along each worker's gradient, one after the other."""
        optimizer.step_per_worker(aggregated)
