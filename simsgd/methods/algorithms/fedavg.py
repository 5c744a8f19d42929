"""FedAvg: local SGD of some workers in each round.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError, count, require
from ..outer_optimizers import OuterOptimizer, outer_optimizer_of
from .contract import ExchangeContext, Exchanged
from .local import LocalSGD


@register("algorithm", "fedavg")
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Local SGD in which only some workers, drawn for each round, train.

    Their models are averaged by the number of samples that each holds, and every worker begins the
    next round from the average, with a new optimizer: clients keep nothing between rounds. The
    others compute nothing, and keep what their memories hold. Buffers, such as BatchNorm
    statistics, are each client's own, or sent and averaged as the models are, or the server's: then
    every round begins with those of the start, which nobody changes. With an outer optimizer the
    average is not the next model: its difference to the last one is the negative of a gradient.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
    """

    participation: float = 0.5  # fraction of workers in a round, in (0, 1]
    client_buffers: str = "local"  # local, average or server
    outer_optimizer: str | None = None  # its spec; none: the average is the next model
    outer_lr: float = 1.0  # lr of the outer optimizer, greater than 0
    outer_momentum: float = 0.0  # its momentum, in [0, 1)
    inner_state: str = field(default="reset", kw_only=True)  # or keep, or average: momenta
    workers_send_alike = False
    takes_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.participation <= 1:
            raise SettingError("participation", self.participation, "must lie in (0, 1]")
        if self.client_buffers not in ("local", "average", "server"):
            rule = "must be local, average or server"
            raise SettingError("client_buffers", self.client_buffers, rule)
        if self.outer_optimizer is None:
            rule, fix = "has no effect without outer_optimizer", "set outer_optimizer too, as sgd"
            require(self.outer_lr == 1, "outer_lr", self.outer_lr, rule, fix)
            require(self.outer_momentum == 0, "outer_momentum", self.outer_momentum, rule, fix)
        self._outer  # noqa: B018 - reads the spec, and refuses a wrong one

    @functools.cached_property
    def _outer(self) -> OuterOptimizer | None:
        if self.outer_optimizer is None:
            return None
        return outer_optimizer_of(self.outer_optimizer, self.outer_lr, self.outer_momentum)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the common model and the outer optimizer's state, [1, n]."""
        state = super().init(x, segment)
        return state if self._outer is None else {**state, **self._outer.init(state["anchor"])}

    def move(self, state: State, mean: Tensor) -> None:
        """Move the common model along the mean difference [n], or by a step of the optimizer."""
        if self._outer is None:
            super().move(state, mean)
        else:
            self._outer.step(state["anchor"], mean.neg(), state)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model, if the round ends; who was not drawn keeps what the memory holds."""
        workers, step = context.workers, context.step
        drawn = self.drawn(step.key.seed, workers, step.number, step.epoch)
        waits = (~drawn[context.channel.hosted]).nonzero().flatten().to(x.device)
        memory = context.memory_state
        kept = {n: value[waits] for n, value in memory.items() if len(value) == len(x)}
        exchanged = super().parameters(x, context, state)
        for name, rows in kept.items():
            memory[name] = memory[name].index_copy(0, waits, rows)
        return exchanged

    def participants(self, seed: int, workers: int, step: int, epoch: int) -> Tensor:
        """Return which workers train in a step, [W] bool: those drawn for its round."""
        return self.drawn(seed, workers, step, epoch)

    def drawn(self, seed: int, workers: int, step: int, epoch: int) -> Tensor:
        """Return which workers are drawn for the round of a step, [W] bool."""
        key = RandomKey(seed, torch.arange(workers)).fold_in(
            "participants", step // self.period(epoch)
        )
        order = key.uniform(1, torch.float64)[:, 0].argsort(stable=True)
        participants = torch.zeros(workers, dtype=torch.bool)
        participants[order[: count(self.participation, workers)]] = True
        return participants

    def weights(
        self, seed: int, workers: int, step: int, epoch: int, samples: Tensor | None
    ) -> Tensor:
        """Return each worker's weight in the round of a step, [W] float64; 0 if not drawn."""
        drawn = self.drawn(seed, workers, step, epoch)
        held = torch.ones(workers) if samples is None else samples
        weights = held.to(torch.float64) * drawn
        return weights / weights.sum()

    def aggregated(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages of those drawn as they arrive, and their weighted mean, [n]."""
        step = context.step
        weights = self.weights(
            step.key.seed, context.workers, step.number, step.epoch, context.samples
        )
        return context.channel.weighted_mean(message, context.segment, weights)
