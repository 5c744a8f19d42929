"""Per-worker gradients by a loop over workers, several at once: one thread for each.

Letters: L workers hosted here, b samples each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..registry import register
from ..settings import SettingError, one_line
from .contract import (
    DEFAULT,
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
    unused_by,
)
from .dropout import OneTimeDropout
from .generators import untouched
from .loop import Loop
from .self_check import BYPASSED, Batch, check_against_loop
from .thread_count import thread_count
from .trees import leaves, mapped, row, stacked
from .worker_threads import ThreadReplicas

_TRIED = 2  # workers of which a loop is to give the same


@contextmanager
def untouched_gradients(model: nn.Module) -> Iterator[None]:
    """Raise `UnsupportedModel` if a backward within reaches the parameters of the model itself."""
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    try:
        yield
        reached = any(p.grad is not None for p, _ in before)
    finally:
        for p, grad in before:
            p.grad = grad
    if reached:
        raise UnsupportedModel(BYPASSED)


@register("engine", "threads")
class Threads(GradientEngine):
    """One worker a thread, each with a single thread inside its operations, on the CPU.

    As many at once as torch has threads (OMP_NUM_THREADS). They give bit for bit what engine
    loop gives with one thread. Takes any model that changes nothing but its buffers as it computes.
    """

    def __init__(
        self, model: nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        super().__init__(model, criterion, config)
        self._replicas: ThreadReplicas[Loop] | None = None
        self._checked = False

    def chunk_size(self, workers: int) -> int:
        """Return the number of threads."""
        return min(workers, torch.get_num_threads())

    def num_threads(self, workers: int) -> int:
        """Return the same: one worker each."""
        return self.chunk_size(workers)

    def halve_chunk(self, workers: int) -> int:
        """Return 0: a worker a thread is what it is."""
        return 0

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        Raises `SettingError` on any other device than the CPU, and for a model that it declines.
        """
        if leaves(x)[0].device.type != "cpu":
            raise SettingError("engine", "threads", "is for the CPU", "use engine auto or onepass")
        try:
            self.try_out(params, buffers, x, y, keys)
            return self.attempt(params, buffers, x, y, keys)
        except UnsupportedModel as reason:
            told = f"declines this model: {reason}"
            raise SettingError("engine", "threads", told, "use engine loop") from None

    def try_out(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> None:
        """Compare the first batch with a loop. Raises `UnsupportedModel` if they differ."""
        if not self._checked:
            with thread_count(1):  # as each copy of the model has
                batch = Batch(params, buffers, x, y, keys, self.per_worker)
                check_against_loop(self, batch, _TRIED, same=True)
            self._checked, self._replicas = True, None  # what these have kept is of the trial

    def attempt(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return what a call does; raise `UnsupportedModel` for a model that it declines."""
        self._replicas = self._replicas or ThreadReplicas(
            self.model, self._loop, own_parameters=True
        )
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        space = self.space(params, len(keys))
        values = space.values

        def one(loop: Loop, w: int, x: Tensor, y: Tensor, key: Tensor) -> Any:
            return loop.one(w, params, after, values, x, y, OneTimeDropout(key))

        numbers = range(len(keys))
        # of each its own count of changes, as a model may write into its input
        xs, ys = ([mapped(_apart, row(batch, w)) for w in numbers] for batch in (x, y))
        with untouched(keys.device), untouched_gradients(self.model):  # which all threads share
            try:
                done = self._replicas.map(one, numbers, xs, ys, keys)
            except Exception as wrong:  # a loop takes the model: what fails is taking copies
                if self._checked or isinstance(wrong, UnsupportedModel):
                    raise
                raise UnsupportedModel(f"its copies fail: {one_line(wrong)}") from wrong
        losses, outputs, missing = zip(*done, strict=True)
        unused = unused_by(missing)
        return Gradients(
            values, torch.stack(losses), stacked([*outputs]), after, unused=unused, flat=space.flat
        )

    def _loop(self, model: nn.Module) -> Loop:
        return Loop(model, self.criterion, self.config)


def _apart(part: Tensor) -> Tensor:
    """Return the same numbers in the same place, of whose changes autograd keeps another count."""
    return part.data
