"""Workers that are nodes, whose devices are processes: the first device of each, and the others.

Letters: N nodes, G devices of each, which are N G processes; B global batch.
"""

import dataclasses

import torch
from torch import Tensor

from ..communication.transport import Distributed, NodeRanks
from ..config import Config
from ..gradients.contract import GradientEngine, Tensors
from ..gradients.trees import Tree
from ..simulator.checkpoint_check import StateDict
from ..simulator.node_device import NodeDevice
from ..simulator.record import StepRecord
from ..training.experiment import Experiment
from .gradient_kinks import RecordingEngine
from .real_worker import OwnWorker, RealStep, Worker


class FirstDevice(OwnWorker):
    """What a node does: its gradient is the mean over its devices, and the rest a worker's."""

    def __init__(self, config: Config, node: NodeRanks) -> None:
        self.node = node
        super().__init__(config, Distributed(config.workers, node=node))
        self.every = Distributed(config.workers * config.devices)

    def step(self, x: Tree, y: Tree, epoch: int) -> RealStep:
        """Train on the node's part of a global batch."""
        done = super().step(x, y, epoch)
        own = torch.tensor(self.node.ask(self.node.sent)).unsqueeze(0)  # [1, G]
        within = self.transport.all_gather_rows(own).flatten()
        self.node.sent = 0
        assert done.counted is not None
        assert done.record is not None
        counted = torch.cat([done.counted.cpu(), sent_within(done.record)])
        return dataclasses.replace(done, sent=torch.cat([done.sent, within]), counted=counted)

    def gradients(self) -> list[Tensors]:
        """Return the gradients of all devices of nodes that trained in the last step."""
        return gathered(self.every, self.engine, self.participants)


class OtherDevice(Worker):
    """A device that computes gradients for the first of its node."""

    def __init__(self, config: Config, node: NodeRanks) -> None:
        self.node = node
        config = dataclasses.replace(config, engine="loop", worker_chunk="auto")
        self.experiment = Experiment.of(config, wrap_engine=self._recording)
        self.device = NodeDevice(self.experiment.simulator.components, node)
        self.every = Distributed(config.workers * config.devices)

    def step(self, x: Tree, y: Tree, epoch: int) -> None:
        """Take the gradient of the device's part of a global batch."""
        self.engine.forget()
        self.device.step(x, y, epoch)
        self.node.ask(self.node.sent)
        self.node.sent = 0

    def gradients(self) -> list[Tensors]:
        """Return the gradients of all devices, those of nodes that did not train among them."""
        return gathered(self.every, self.engine, None)

    def state(self) -> StateDict:
        """Return nothing: the first devices know it."""
        return {}

    def _recording(self, engine: GradientEngine) -> GradientEngine:
        self.engine = RecordingEngine(engine)
        return self.engine


def gathered(
    every: Distributed, engine: RecordingEngine, participants: Tensor | None
) -> list[Tensors]:
    """Return the gradients of the devices of all nodes, or of those that are `participants` [N]."""

    def rows(own: Tensor) -> Tensor:
        found = every.all_gather_rows(own)
        if participants is None:
            return found
        return found[participants.repeat_interleave(len(found) // len(participants))]

    return [{n: rows(v) for n, v in call.values.items()} for call in engine.calls]


def sent_within(record: StepRecord) -> Tensor:
    """Return the bytes that each device sends within its node by the record, [N * G] or [0]."""
    within = record.within
    if within is None:
        return torch.zeros(0, dtype=torch.int64)
    trains = torch.ones(within.nodes, dtype=torch.int64)
    if record.participants is not None:
        trains = record.participants.long()
    return (trains.unsqueeze(1) * torch.tensor(within.sent)).flatten()
