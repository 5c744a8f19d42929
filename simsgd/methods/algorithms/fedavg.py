"""FedAvg: local SGD of some workers in each round.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message
from ...keyed_random import RandomKey
from ...registry import register
from ...settings import count, require
from .contract import ExchangeContext
from .local import LocalSGD


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
