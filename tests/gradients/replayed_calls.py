"""A CUDA graph as a CPU can have one: the calls of a work, and what makes them again.

Each is made on the same tensors as the first time, and what it gives is written to where that lay.
So it is wrong wherever a graph would be: in what Python computes from step to step, and in tensors
that are no longer the ones it was captured with.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simsgd import compiled_loops
from simsgd.gradients import Gradients
from simsgd.gradients.worker_threads import single_threaded

WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2")


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, _tensors(out)))
        return out


def replayable(work: Callable[[], Gradients]) -> tuple[Gradients, Callable[[], None]]:
    """Return what some work gives, as numbers that mean nothing yet, and what replays it."""
    recording = _Recording()
    with compiled_loops.switched(False), single_threaded(), recording:
        found = work()
    for tensor in _tensors([found.loss, found.output, found.buffers, found.values]):
        tensor.fill_(-1)

    def replay() -> None:
        with torch.no_grad():
            for func, args, kwargs, outs in recording.calls:
                for kept, new in zip(outs, _tensors(func(*args, **kwargs)), strict=True):
                    if kept.data_ptr() != new.data_ptr():
                        kept.copy_(new)

    return found, replay


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
