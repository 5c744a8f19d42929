"""Butterfly: delayed gossip of gradients between workers whose numbers differ in one bit.

Letters: W workers, L hosted here, n elements of one segment.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...recipe import Recipe
from ...registry import register
from ...settings import require
from .contract import ExchangeContext, GradientAlgorithm


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
    sized_by_shapes = False
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
