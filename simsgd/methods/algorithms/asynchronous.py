"""Asynchronous algorithms: workers do not wait for each other, and gradients arrive late.

Letters: W workers, L hosted here, n elements of one segment.
"""

import functools
import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...keyed_random import RandomKey
from ...recipe import Recipe
from ...registry import register
from ...settings import SettingError, require
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

    def __post_init__(self) -> None:
        self.longest_delay  # noqa: B018 - reads the setting, and refuses a wrong one

    @property
    def longest_delay(self) -> int:
        """The most steps that a gradient may be late."""
        read = re.fullmatch(r"(uniform:)?(\d+)", str(self.staleness))
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


@register("algorithm", "butterfly")
@dataclass(frozen=True)
class Butterfly(GradientAlgorithm):
    """Delayed gossip of gradients: in step i workers whose numbers differ in one bit meet.

    With W = 2^D, worker w meets w xor 2^(i mod D) and sends it the newest gradients that it knows
    of its own half of the workers. Each applies the mean of the newest gradient of every worker
    that it knows of; its own is new, those of others are up to D - 1 steps late. Gradients are
    compressed once, by the worker they are of, and passed on as they are.
    """

    parameters_per_worker = True
    computes_mean = False
    between_processes = False  # what is passed on is kept once for all workers

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` unless W is a power of 2."""
        dimensions(recipe.workers)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the last gradients, newest first, [L, D, n], and their bytes, [L, D]: zeros."""
        depth = max(1, math.ceil(math.log2(max(2, len(x)))))
        return {
            "gradients": x.new_zeros(len(x), depth, x.shape[1]),
            "bytes": torch.zeros(len(x), depth, dtype=torch.int64, device=x.device),
        }

    def gradients(
        self, compensated: Tensor, context: ExchangeContext, state: State | None = None
    ) -> tuple[Message, Tensor]:
        """Return the messages, and the mean of what each worker knows, [W, n]."""
        assert state is not None
        workers, step = context.workers, context.step.number
        depth = dimensions(workers)
        message = context.compress(compensated).on_wire(context.channel.wire)
        for name, newest in (("gradients", message.to_dense()), ("bytes", message.payload_bytes())):
            state[name] = state[name].roll(1, dims=1)
            state[name][:, 0] = newest
        late = lateness(workers, step)  # [W, W]
        known = late <= step
        passed_on = known & relayed(workers, step)
        size = state["bytes"].T[late.clamp(max=depth - 1), torch.arange(workers)]  # [W, W]
        payload = (size.cpu() * passed_on).sum(1).to(size)  # [W]
        sent = context.channel.relay(message, context.segment, payload)
        total = torch.zeros_like(compensated)
        for age in range(depth):
            mask = (known & (late == age)).to(compensated)
            total += mask @ state["gradients"][:, age]
        return sent, total / known.sum(1, keepdim=True).to(compensated)


def dimensions(workers: int) -> int:
    """Return D of W = 2^D. Raises `SettingError` for any other W."""
    depth = workers.bit_length() - 1
    rule = "must be a power of 2, at least 2, for algorithm butterfly"
    require(workers >= 2 and 2**depth == workers, "workers", workers, rule)
    return depth


@functools.lru_cache(64)
def lateness(workers: int, step: int) -> Tensor:
    """Return how late the gradient of worker r (column) is that worker w (row) applies, [W, W].

    News of r crosses each dimension in which the two differ when it is that dimension's turn: they
    are as late as the dimension whose turn is longest ago.
    """
    depth = dimensions(workers)
    ids = torch.arange(workers)
    differ = ids.unsqueeze(1).bitwise_xor(ids)  # [W, W]
    late = torch.zeros_like(differ)
    for d in range(depth):
        ago = (step - d) % depth
        late = late.maximum((differ >> d & 1) * ago)
    return late


def relayed(workers: int, step: int) -> Tensor:
    """Return whose gradients (column) each worker (row) sends the one it meets, [W, W] bool."""
    ids = torch.arange(workers)
    bit = step % dimensions(workers)
    return (ids.unsqueeze(1).bitwise_xor(ids) >> bit & 1) == 0
