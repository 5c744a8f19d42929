"""NoLoCo: local steps, and then a step of momentum between two workers, without any all-reduce.

Letters: W workers, L hosted here, n elements of one segment, p their parameters [L, n], phi slow
ones and m a momentum of each, H steps from one exchange to the next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Dense, State
from ...communication.segments import Segment
from ...registry import register
from ...settings import require
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm
from .islands import islands


@register("algorithm", "noloco")
@dataclass(frozen=True)
class NoLoCo(ParameterAlgorithm):
    """Every H steps pairs of workers, drawn at random, move slow weights along what both changed.

    d = C(p - phi); m = alpha m + beta mean_pair(d) + gamma (mean_pair(phi) - phi); phi = phi + m;
    p = phi. Two buffers go to one other worker; of an odd number of workers one sends nothing, and
    moves along its own change.
    Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, "NoLoCo: No-all-reduce Low Communication Training
    Method for Large Models", 2025, https://arxiv.org/abs/2506.10911.

    Differs from the paper: slow weights are never compressed.
    """

    local_steps: int = 50  # H, at least 1
    alpha: float = 0.5  # share of the momentum that stays, in [0, 1)
    beta: float = 0.7  # weight of the change, greater than 0
    gamma: float = 0.7  # weight of the difference between slow weights, in [0, 2]
    final_exchange: bool = False  # also after the last step of a run
    has_own_memory = True

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "must be at least 1")
        require(0 <= self.alpha < 1, "alpha", self.alpha, "must lie in [0, 1)")
        require(0 < self.beta < float("inf"), "beta", self.beta, "must be greater than 0")
        require(0 <= self.gamma <= 2, "gamma", self.gamma, "must lie in [0, 2]")

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the slow weights and the momentum of each worker, [L, n]."""
        return {"slow": x.clone(), "momentum": torch.zeros_like(x)}

    def period(self, epoch: int) -> int:
        """Return the steps from one exchange to the next."""
        return self.local_steps

    def links(self, seed: int, workers: int, step: int) -> Tensor:
        """Return whether two workers are a pair in a step, [W, W] bool."""
        return islands(seed, step // self.local_steps, workers, 2).links

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Move the slow weights, if H steps have passed, and begin again from them."""
        step, channel = context.step, context.channel
        if (step.number + 1) % self.local_steps and not (step.last and self.final_exchange):
            return None
        pairs = islands(step.key.seed, step.number // self.local_steps, context.workers, 2)
        slow, change = state["slow"], x - state["slow"]
        message = context.compress(change)
        sent, moved = channel.neighbor_mean(message, context.segment, pairs)
        _, mean = channel.neighbor_mean(Dense.of(slow), context.segment, pairs)
        momentum = state["momentum"].mul_(self.alpha).add_(moved, alpha=self.beta)
        momentum.add_(mean - slow, alpha=self.gamma)
        slow.add_(momentum)
        x.copy_(slow)
        return Exchanged.of(change, sent)
