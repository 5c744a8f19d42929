"""Trains as one worker of a real data-parallel job, in its own process.

Letters: W workers, which is W processes; B global batch, b samples of the own worker.
"""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..catalog import begin_texts
from ..communication.transport import Distributed, Measured, counted
from ..config import Config
from ..gradients.contract import GradientEngine, Tensors, carried
from ..gradients.dropout import ReplayedDropout
from ..gradients.generators import seeded
from ..gradients.trees import Tree, leaves, row
from ..keyed_random import RandomKey
from ..simulator.checkpoint_check import StateDict
from ..simulator.optimizer_class import optimizer_arguments, optimizer_class
from ..simulator.record import StepRecord
from ..simulator.shard import shard
from ..simulator.step_settings import StepSettings
from ..training.experiment import Experiment
from .gradient_kinks import RecordingEngine
from .link_times import measured
from .message_flips import Decided, DecisionRecorder


@dataclass(frozen=True)
class RealStep:
    """What the processes did in one step, known to all of them."""

    losses: Tensor  # of each worker, [W]
    sent: Tensor  # bytes of the buffers that each handed to the network, [W] int64
    counted: Tensor | None  # the same by their own ledger, [W] int64; None: they have none
    decided: list[Decided]  # what was decided in the messages of all workers
    parameters: dict[str, Tensor]  # {name: [*shape]}, or of all workers' own, [W, *shape]
    measured: Sequence[Measured] = ()  # each collective, if the worker times them
    record: StepRecord | None = None  # of the worker's own simulator, if it has one


class Worker(ABC):
    """One process of a real job."""

    experiment: Experiment
    transport: Distributed

    @abstractmethod
    def step(self, x: Tree, y: Tree, epoch: int) -> RealStep | None:
        """Train on the own part of a global batch, `x` [B, ...] and `y` [B, ...].

        Returns None in a process that has no part in what is compared.
        """

    @abstractmethod
    def gradients(self) -> list[Tensors]:
        """Return the gradients of all workers in the last step, {name: [W, *shape]} for each pass.

        All processes must call this, and `state`.
        """

    @abstractmethod
    def state(self) -> StateDict:
        """Return what a simulator needs to go on from here, in the form of its `state_dict`.

        What is missing is as in a simulation of as many steps.
        """


class OwnWorker(Worker):
    """Compressor, memory and optimizer are the simulation's, the gradient an ordinary backward.

    What it sends is what `Message.pack` made, through the collectives of a process group, which
    are timed once the transport has a stopwatch.
    """

    def __init__(self, config: Config, transport: Distributed | None = None) -> None:
        self.transport = transport or Distributed(config.workers)
        config = dataclasses.replace(config, engine="loop", worker_chunk="auto")
        self.recorder = DecisionRecorder()
        self.participants: Tensor | None = None  # that train in the last step, [W] bool; None: all
        self.experiment = Experiment.of(config, self.transport, self._recording, [self.recorder])

    def step(self, x: Tree, y: Tree, epoch: int) -> RealStep:
        """Train on the own part of a global batch."""
        self.engine.forget()
        self.recorder.decided.clear()
        record = self.experiment.simulator.step(x, y, epoch)
        self.participants = record.participants
        rows = self.transport.all_gather_rows
        sent = rows(self.transport.sent)
        self.transport.sent.zero_()
        decided = [(segment, rows(codes)) for segment, codes in self.recorder.decided]
        ended = self.experiment.simulator.parameters()
        times = () if self.transport.stopwatch is None else measured(self.transport)
        counted = record.bytes.payload
        return RealStep(record.losses, sent, counted, decided, ended, times, record)

    def gradients(self) -> list[Tensors]:
        """Return the gradients of all workers that trained in the last step."""

        def rows(own: Tensor) -> Tensor:
            every = self.transport.all_gather_rows(own)
            return every if self.participants is None else every[self.participants]

        return [{n: rows(v) for n, v in call.values.items()} for call in self.engine.calls]

    def state(self) -> StateDict:
        """Return the state of all workers."""
        return self.experiment.simulator.state_dict()

    def _recording(self, engine: GradientEngine) -> GradientEngine:
        self.engine = RecordingEngine(engine)
        return self.engine


class TorchWorker(Worker):
    """None of our code: torch.nn.parallel.DistributedDataParallel and torch.optim.

    Except that random numbers are drawn as in the simulation, by step and worker. `listen`
    registers a communication hook, and returns the list to which it adds the bytes that it sends.
    """

    def __init__(
        self,
        config: Config,
        listen: Callable[[nn.parallel.DistributedDataParallel], list[int]] = counted,
    ) -> None:
        self.experiment = Experiment.of(config)
        self.transport = Distributed(config.workers)
        model = self.experiment.model
        self.experiment.simulator.components.mode.enter()
        self.parallel = with_own_buffers(model)
        self.bytes = listen(self.parallel)
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.own: Tensors = {}  # this worker's gradient, before any other's comes in
        for name, p in self.trained.items():
            p.register_hook(partial(self._keep, name))
        self.optimizers: dict[str, torch.optim.Optimizer] = {}  # by the name of the class
        self.steps = 0
        self.epoch = 0

    def step(self, x: Tree, y: Tree, epoch: int) -> RealStep:
        """Train on the own part of a global batch."""
        rank, ranks = self.transport.rank, self.transport.ranks
        x, y = (row(shard(part, ranks, 1), (rank, 0)) for part in (x, y))  # [b, ...]
        self._begin(epoch, len(leaves(x)[0]))
        self._follow(epoch)
        self.parallel.zero_grad()
        self.own.clear()
        worker = torch.tensor([rank], device=leaves(x)[0].device)
        place = RandomKey(self.experiment.config.seed, worker).fold_in(self.steps, "dropout", 0)
        key = place.keys()[0]
        with seeded(key), ReplayedDropout(key) as dropout:
            loss = self.experiment.criterion(self.parallel(x), y)
            dropout.finished = True
            edge = torch.autograd.graph.get_gradient_edge(loss)  # keeps the backward within
            torch.autograd.backward(edge, torch.ones_like(loss))
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.steps += 1
        sent = torch.tensor([sum(self.bytes)])
        self.bytes.clear()
        rows = self.transport.all_gather_rows
        ended = {name: p.detach() for name, p in self.trained.items()}
        return RealStep(rows(loss.detach().reshape(1)), rows(sent), None, [], ended)

    def gradients(self) -> list[Tensors]:
        """Return the gradients of all workers in the last step, zeros where there was none."""
        own = {n: self.own.get(n, torch.zeros_like(p)) for n, p in self.trained.items()}
        return [
            {
                name: self.transport.all_gather_rows(value.unsqueeze(0))
                for name, value in own.items()
            }
        ]

    def state(self) -> StateDict:
        """Return parameters, buffers of all workers, and what the optimizer keeps."""
        buffers = self.experiment.model.named_buffers()
        return {
            "parameters": {name: p.detach() for name, p in self.trained.items()},
            "buffers": {
                name: self.transport.all_gather_rows(b.unsqueeze(0)) for name, b in buffers
            },
            "optimizer": self._kept(),
        }

    def _kept(self) -> StateDict:
        """Return what the optimizers keep, in the form of a simulator's, and their groups."""
        numbers: dict[Tensor, int] = {p: number for number, p in enumerate(self.trained.values())}
        state, groups = {}, []
        for kind, optimizer in self.optimizers.items():
            state.update({numbers[p]: own for p, own in optimizer.state.items()})
            for group in optimizer.param_groups:
                chosen = [numbers[p] for p in group["params"]]
                groups.append({**group, "params": chosen, "optimizer": kind})
        inner = {"state": state, "param_groups": groups}
        return {"name": next(iter(self.optimizers)), "inner": inner, "decayed": {}}

    def _keep(self, name: str, gradient: Tensor) -> None:
        self.own[name] = gradient.detach().clone()

    def _begin(self, epoch: int, streams: int) -> None:
        """Stand before the text again where an epoch begins, if the model carries a state."""
        model = self.experiment.model
        if epoch != self.epoch and carried(model):
            begin_texts(model, streams)
        self.epoch = epoch

    def _follow(self, epoch: int) -> None:
        """Let the optimizers have the groups and settings that the regime has now."""
        parts = self.experiment.simulator.components
        every = parts.optimizer.plans(parts.regime.at(epoch, self.steps))
        before, self.optimizers = self.optimizers, {}
        for kind in dict.fromkeys(plan.optimizer for plan in every):
            takes = optimizer_arguments(kind)
            groups = [
                {
                    **{key: value for key, value in plan.options.items() if key in takes},
                    "params": [self.trained[name] for name in plan.names],
                }
                for plan in every
                if plan.optimizer == kind
            ]
            made: Callable[..., torch.optim.Optimizer] = optimizer_class(kind)
            self.optimizers[kind] = made(groups, lr=groups[0]["lr"])
            if kind in before:  # else it begins
                self.optimizers[kind].state.update(before[kind].state)


def with_own_buffers(model: nn.Module) -> nn.parallel.DistributedDataParallel:
    """Return the model in DistributedDataParallel, BatchNorm statistics to each process its own.

    The option for that has another name in newer versions of torch.
    """
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    new = "forward_sync_buffers"
    if new not in known:
        return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    wrap: Callable[..., nn.parallel.DistributedDataParallel] = nn.parallel.DistributedDataParallel
    return wrap(model, **{new: False})


def is_plain(experiment: Experiment, steps: int) -> bool:
    """Return whether DistributedDataParallel alone does what the first `steps` steps ask for.

    It sends zeros for parameters without gradient, of which the simulation sends nothing.
    """
    config, simulator = experiment.config, experiment.simulator
    recipe, regime, batches = simulator.recipe, simulator.components.regime, experiment.batches
    methods = (StepSettings.at(recipe, regime, step // batches, step) for step in range(steps))
    return (
        config.algorithm == "allreduce"
        and config.aggregate == "mean"
        and config.attack is None
        and not config.downlink
        and config.memory == "none"
        and config.clip is None
        and not simulator.unused_parameters(*next(experiment.epoch_batches(0)))
        and config.accumulate == config.devices == 1
        and config.amp is None
        and config.weight_decay_at == "global"
        and config.value_dtype in (None, config.dtype)
        and all(m.compressor == "none" and not (m.layers or m.regularizers) for m in methods)
    )
