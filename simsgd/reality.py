"""One worker of a real data-parallel job, in a process of its own.

Letters: W workers, which is W processes; B global batch, b samples of the own worker.
"""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .config import Config
from .draw import Draw
from .experiment import Experiment
from .gradients.contract import carried
from .gradients.randomness import KeyedDropout
from .messages import Message
from .method import Method
from .regime import optimizer_arguments, optimizer_class
from .transport import Distributed, counted


@dataclass(frozen=True)
class RealStep:
    """What the processes did in one step, known to all of them."""

    losses: Tensor  # of each worker, [W]
    sent: Tensor  # bytes of the buffers that each handed to the network, [W] int64
    weighed: Tensor | None  # what their own ledger says of it, [W] int64; None: they have none
    heard: list[Message]  # what was gathered on rank 0, in order, [W, ...] each
    parameters: dict[str, Tensor]  # {name: [*shape]}, or of all workers' own, [W, *shape]


class Worker(ABC):
    """One process of a real job."""

    experiment: Experiment

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, epoch: int) -> RealStep:
        """Train on the own part of a global batch, `x` [B, ...] and `y` [B]."""


class OwnWorker(Worker):
    """Compressor, memory and optimizer are the simulation's, the gradient an ordinary backward.

    What it sends is what `Message.pack` made, through the collectives of a process group.
    """

    def __init__(self, config: Config) -> None:
        self.transport = Distributed(config.workers)
        config = dataclasses.replace(config, engine="loop", worker_chunk="auto")
        self.experiment = Experiment.of(config, self.transport)
        if self.transport.rank == 0:
            self.transport.heard = []

    def step(self, x: Tensor, y: Tensor, epoch: int) -> RealStep:
        """Train on the own part of a global batch."""
        record = self.experiment.simulator.step(x, y, epoch)
        sent = self.transport.rows(self.transport.sent)
        self.transport.sent.zero_()
        heard, self.transport.heard = self.transport.heard or [], []
        ended = self.experiment.simulator.parameters()
        return RealStep(record.losses, sent, record.bytes.payload, heard, ended)


class TorchWorker(Worker):
    """None of our code: torch.nn.parallel.DistributedDataParallel and torch.optim.

    Except that dropout masks are drawn as in the simulation, by step and worker. `listen` registers
    a communication hook, and returns the list to which it adds the bytes that it sends.
    """

    def __init__(
        self,
        config: Config,
        listen: Callable[[nn.parallel.DistributedDataParallel], list[int]] = counted,
    ) -> None:
        self.experiment = Experiment.of(config)
        self.transport = Distributed(config.workers)
        model = self.experiment.model.train()
        self.parallel = with_own_buffers(model)
        self.bytes = listen(self.parallel)
        self.optimizer: torch.optim.Optimizer | None = None
        self.steps = 0
        self.epoch = 0

    def step(self, x: Tensor, y: Tensor, epoch: int) -> RealStep:
        """Train on the own part of a global batch."""
        rank, ranks = self.transport.rank, self.transport.ranks
        x, y = (part.unflatten(0, (ranks, -1))[rank] for part in (x, y))  # [b, ...]
        self._begin(epoch, len(x))
        optimizer = self._optimizer(epoch)
        optimizer.zero_grad()
        worker = torch.tensor([rank], device=x.device)
        draw = Draw(self.experiment.config.seed, worker).at(self.steps, "dropout", 0)
        with KeyedDropout(draw.keys()[0]):
            loss = self.experiment.criterion(self.parallel(x), y)
        loss.backward()
        optimizer.step()
        self.steps += 1
        sent = torch.tensor([sum(self.bytes)])
        self.bytes.clear()
        rows = self.transport.rows
        ended = {name: p.detach() for name, p in self.parallel.module.named_parameters()}
        return RealStep(rows(loss.detach().reshape(1)), rows(sent), None, [], ended)

    def _begin(self, epoch: int, streams: int) -> None:
        """Stand before the text again where an epoch begins, if the model carries a state."""
        model: Any = self.experiment.model
        if epoch != self.epoch and carried(model):
            model.begin(streams)
        self.epoch = epoch

    def _optimizer(self, epoch: int) -> torch.optim.Optimizer:
        """Return the optimizer with the settings that the regime has now."""
        settings = self.experiment.simulator.regime.at(epoch, self.steps)
        name = settings.get("optimizer", "SGD")
        takes = optimizer_arguments(name)
        values = {key: value for key, value in settings.items() if key in takes}
        kind: Any = optimizer_class(name)
        if type(self.optimizer) is not kind:
            self.optimizer = kind(self.parallel.parameters(), **values)
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group.update(values)
        return self.optimizer


def with_own_buffers(model: nn.Module) -> nn.parallel.DistributedDataParallel:
    """Return the model in DistributedDataParallel, BatchNorm statistics to each process its own.

    The option for that has another name in newer versions of torch.
    """
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    new = "forward_sync_buffers"
    option: dict[str, Any] = {new if new in known else "broadcast_buffers": False}
    return nn.parallel.DistributedDataParallel(model, **option)


def is_plain(experiment: Experiment, steps: int) -> bool:
    """Return whether DistributedDataParallel alone does what the first `steps` steps ask for."""
    config, simulator = experiment.config, experiment.simulator
    recipe, regime, batches = simulator.recipe, simulator.regime, experiment.batches
    methods = (Method.at(recipe, regime, step // batches, step) for step in range(steps))
    return (
        config.algorithm == "allreduce"
        and not config.downlink
        and config.memory == "none"
        and config.clip is None
        and config.accumulate == 1
        and config.amp is None
        and config.weight_decay_at == "global"
        and config.value_dtype in (None, config.dtype)
        and all(m.compressor == "none" and not m.regularizers for m in methods)
    )
