"""A device of a node that is not its first, in a process of its own.

Letters: N nodes, G devices of each, M passes, b samples of a device, B = N * G * b * M.
"""

import dataclasses

from ..communication.transport import NodeRanks
from ..gradients.accumulation import accumulated
from ..gradients.contract import Gradients, Tensors
from ..gradients.trees import Tree, row
from ..keyed_random import RandomKey
from .components import Components
from .node_gradients import gradient_of_node
from .worker_gradients import hosted_shards


class NodeDevice:
    """Takes the gradient of its share of each batch at the parameters that the first tells it.

    It keeps nothing from step to step: no memory, no optimizer, and buffers that it is told too.
    `parts` are those of a simulator of all nodes in one process.
    """

    def __init__(self, parts: Components, node: NodeRanks) -> None:
        self.parts, self.node = parts, node
        self.steps = 0

    def step(self, x: Tree, y: Tree, epoch: int) -> None:
        """Do its part of a step on a global batch, `x` [B, ...] and `y` [B, ...]."""
        parts, node = self.parts, self.node
        seed, workers = parts.recipe.seed, parts.recipe.workers
        participants = parts.algorithm.participants(seed, workers, self.steps, epoch)
        trains = participants is None or bool(participants[node.node])
        place = node.node * node.devices + node.device
        x, y = (row(hosted_shards(parts, part), slice(place, place + 1)) for part in (x, y))
        key = parts.key.fold_in(self.steps)
        key = dataclasses.replace(key, workers=key.workers[node.node : node.node + 1])

        def compute(params: Tensors, buffers: Tensors, keys: RandomKey) -> Gradients:
            return accumulated(parts.engine, params, buffers, x, y, keys.fold_in("dropout"))

        parts.mode.enter()
        gradient_of_node(node, compute, self._params(), {}, key, trains)
        self.steps += 1

    def _params(self) -> Tensors:
        """Return what the first device's parameters are written over, or are like."""
        read = self.parts.parameters.read()
        if not self.parts.parameters.per_worker:
            return read
        return {name: p.detach()[:1] for name, p in read.items()}
