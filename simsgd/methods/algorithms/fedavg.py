"""FedAvg: local SGD of some workers in each round.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import SettingError, count
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
    every round begins with those of the start, which nobody changes.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
    """

    participation: float = 0.5  # fraction of workers in a round, in (0, 1]
    client_buffers: str = "local"  # local, average or server
    resets_optimizer = True
    workers_send_alike = False
    takes_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.participation <= 1:
            raise SettingError("participation", self.participation, "must lie in (0, 1]")
        if self.client_buffers not in ("local", "average", "server"):
            rule = "must be local, average or server"
            raise SettingError("client_buffers", self.client_buffers, rule)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model, if the round ends; who was not drawn keeps what the memory holds."""
        workers, step = context.workers, context.step
        drawn = self.participants(step.key.seed, workers, step.number, step.epoch)
        waits = (~drawn[context.channel.hosted]).nonzero().flatten().to(x.device)
        memory = context.memory_state
        kept = {n: value[waits] for n, value in memory.items() if len(value) == len(x)}
        exchanged = super().parameters(x, context, state)
        for name, rows in kept.items():
            memory[name] = memory[name].index_copy(0, waits, rows)
        return exchanged

    def participants(self, seed: int, workers: int, step: int, epoch: int) -> Tensor:
        """Return which workers train in the round of a step, [W] bool."""
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
        participants = self.participants(seed, workers, step, epoch)
        held = torch.ones(workers) if samples is None else samples
        weights = held.to(torch.float64) * participants
        return weights / weights.sum()

    def aggregated(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages of those drawn as they arrive, and their weighted mean, [n]."""
        step = context.step
        weights = self.weights(
            step.key.seed, context.workers, step.number, step.epoch, context.samples
        )
        return context.channel.weighted_mean(message, context.segment, weights)
