"""Per-worker gradients by a loop over workers, several at once: one thread for each.

Letters: L workers hosted here, b samples each.
"""

import copy
import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor, nn

from ..registry import register
from ..settings import SettingError, require
from .contract import Criterion, GradientEngine, Gradients, Tensors
from .loop import Loop


@register("engine", "threads")
class Threads(GradientEngine):
    """One worker a thread, each with a single thread inside its operations, on the CPU.

    As many at once as torch has threads (OMP_NUM_THREADS). A small operation gains nothing from
    several threads, while workers know nothing of each other; they give bit for bit what engine
    loop gives with one thread. Takes any model that changes nothing but its buffers as it computes.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion,
        chunk: int | str = "auto",
        per_worker: bool = False,
    ) -> None:
        super().__init__(model, criterion, chunk, per_worker)
        self._pool: ThreadPoolExecutor | None = None
        self._loops: list[Loop] = []  # one for each thread, on models that share their parameters
        self._free: queue.SimpleQueue[Loop] = queue.SimpleQueue()

    def at_once(self, workers: int) -> int:
        """Return the number of threads."""
        return min(workers, torch.get_num_threads())

    def lower(self, workers: int) -> int:
        """Return 0: a worker a thread is what it is."""
        return 0

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        Raises `SettingError` on any other device than the CPU.
        """
        on_cpu = x.device.type == "cpu"
        require(on_cpu, "engine", "threads", "is for the CPU", "use engine auto or onepass")
        pool = self._started()
        for loop in self._loops:
            _be_in_the_mode_of(self.model, loop.model)
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        values = self.space(params, len(keys))
        one = partial(self._one, params, after, values)
        done = pool.map(one, range(len(keys)), x, y, keys)
        losses, outputs = zip(*done, strict=True)
        return Gradients(values, torch.stack(losses), torch.stack(outputs), after)

    def _one(
        self,
        params: Tensors,
        buffers: Tensors,
        values: Tensors,
        w: int,
        x: Tensor,
        y: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        loop = self._free.get()
        try:
            return loop.one(w, params, buffers, values, x, y, key)
        finally:
            self._free.put(loop)

    def _started(self) -> ThreadPoolExecutor:
        """Return the threads, with a loop for each; the first call makes them."""
        if self._pool is None:
            threads = torch.get_num_threads()
            shared = {id(p): p for p in self.model.parameters()}
            for replica in [_replica(self.model, shared) for _ in range(threads)]:
                self._loops.append(Loop(replica, self.criterion, per_worker=self.per_worker))
                self._loops[-1].amp = self.amp
                self._free.put(self._loops[-1])
            self._pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
        return self._pool


def _replica(model: nn.Module, shared: dict[int, nn.Parameter]) -> nn.Module:
    """Return a copy of a model with the same parameters."""
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception as wrong:  # whatever a module keeps that has no copy
        told = f"needs a copy of the model for each thread, and it has none ({wrong})"
        raise SettingError("engine", "threads", told, "use engine loop") from wrong


def _be_in_the_mode_of(model: nn.Module, replica: nn.Module) -> None:
    """Let each module of the replica train or evaluate as its original does."""
    for module, same in zip(model.modules(), replica.modules(), strict=True):
        same.training = module.training
