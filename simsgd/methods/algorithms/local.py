"""Local SGD: workers step alone for a while, and then agree on a model.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], H steps
from one exchange to the next.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...keyed_random import RandomKey
from ...recipe import Recipe
from ...registry import register
from ...settings import SettingError, count, require
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm


@register("algorithm", "local")
@dataclass(frozen=True)
class LocalSGD(ParameterAlgorithm):
    """Each worker takes H steps alone; then all continue from the mean of their models.

    Workers send the differences to the model that all began with, so that these can be compressed
    and a memory can keep what is left out: x = a + mean_i C(x_i - a + e_i), a = x.
    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019,
    https://arxiv.org/abs/1805.09767; with `post_local_from`, Lin, Stich, Patel, Jaggi, "Don't Use
    Large Mini-Batches, Use Local SGD", ICLR 2020, https://arxiv.org/abs/1808.07217.
    """

    local_steps: int = 8  # H, at least 1
    post_local_from: int = 0  # epoch from which on H holds; before it workers agree at every step

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "must be at least 1")
        rule = "must be at least 0"
        require(self.post_local_from >= 0, "post_local_from", self.post_local_from, rule)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the model that all began with, one row for all workers, [1, n]."""
        return {"anchor": x[:1].clone()}

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for settings that only an exchange of gradients has."""
        super().check(recipe)
        if recipe.lr_in_memory:
            rule = f"has no effect with algorithm {recipe.algorithm}"
            raise SettingError("lr_in_memory", None, f"{rule}, which does not exchange gradients")

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model, if H steps have passed."""
        if (context.step.number + 1) % self.period(context.step.epoch):
            return None
        memory, kept = context.memory, context.memory_state
        compensated = memory.compensate(x - state["anchor"], kept)
        sent, mean = self.aggregate(context.compress(compensated), context)
        exchanged = Exchanged.of(compensated, sent, kept)
        memory.update(compensated, sent, kept)
        self.move(state, memory.on_aggregate(mean, kept))
        x.copy_(state["anchor"].expand_as(x))
        return exchanged

    def period(self, epoch: int) -> int:
        """Return the steps from one exchange to the next in an epoch."""
        return self.local_steps if epoch >= self.post_local_from else 1

    def aggregate(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages as they arrive, and their mean, [n]."""
        return context.channel.all_reduce_mean(message, context.segment)

    def move(self, state: State, mean: Tensor) -> None:
        """Move the common model along the mean of what was said, [n]."""
        state["anchor"].add_(mean)


@register("algorithm", "fedavg")
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Local SGD in which only some workers, drawn for each round, train.

    Their models are averaged by the number of samples that each holds, and every worker begins the
    next round from the average, with a new optimizer: clients keep nothing between rounds. The
    others' steps are computed beside them and dropped, and count in no loss or error.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
    """

    participation: float = 0.5  # fraction of workers in a round, in (0, 1]
    resets_optimizer = True

    def __post_init__(self) -> None:
        super().__post_init__()
        good = 0 < self.participation <= 1
        require(good, "participation", self.participation, "must lie in (0, 1]")

    def participants(self, seed: int, workers: int, step: int, epoch: int) -> Tensor:
        """Return which workers train in the round of a step, [W] bool."""
        key = RandomKey(seed, torch.arange(workers)).fold_in(
            "participants", step // self.period(epoch)
        )
        order = key.uniform(1, torch.float64)[:, 0].argsort(stable=True)
        participants = torch.zeros(workers, dtype=torch.bool)
        participants[order[: count(self.participation, workers)]] = True
        return participants

    def weights(self, context: ExchangeContext) -> Tensor:
        """Return each worker's weight in this round, [W] float64; 0 for those not drawn."""
        workers, step = context.workers, context.step
        participants = self.participants(step.key.seed, workers, step.number, step.epoch)
        samples = torch.ones(workers) if context.samples is None else context.samples
        weights = samples.to(torch.float64) * participants
        return weights / weights.sum()

    def aggregate(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages of those drawn as they arrive, and their weighted mean, [n]."""
        return context.channel.weighted_mean(message, context.segment, self.weights(context))


@register("algorithm", "diloco")
@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """Local SGD whose mean difference is the gradient of an outer optimizer.

    With g = -mean_i (x_i - a): v = m v + g, a = a - lr (g + m v): SGD with Nesterov momentum. The
    workers' own optimizers continue.
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
    https://arxiv.org/abs/2311.08105.
    """

    outer_lr: float = 0.7  # lr, greater than 0
    outer_momentum: float = 0.9  # m in [0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        good = 0 < self.outer_lr < math.inf
        require(good, "outer_lr", self.outer_lr, "must be greater than 0")
        good = 0 <= self.outer_momentum < 1
        require(good, "outer_momentum", self.outer_momentum, "must lie in [0, 1)")

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the common model and the outer momentum, [1, n]."""
        return {**super().init(x, segment), "velocity": torch.zeros_like(x[:1])}

    def move(self, state: State, mean: Tensor) -> None:
        """Take a step of the outer optimizer."""
        state["velocity"].mul_(self.outer_momentum).sub_(mean)
        step = state["velocity"] * self.outer_momentum - mean
        state["anchor"].sub_(step, alpha=self.outer_lr)
