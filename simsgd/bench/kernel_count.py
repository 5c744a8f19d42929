"""Counts the calls of a work that launch something, and those that wait for the device.

Counted are calls of ATen, on any device; views and allocations launch nothing. A call waits if its
result is a number of Python, or if the shape of its result depends on numbers of the device.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import compiled_loops
from ..gradients.model_cost import is_view
from ..gradients.worker_threads import single_threaded

_ALLOCATING = (
    "_record_function_enter_new", "_record_function_exit", "_unsafe_view", "detach", "empty",
    "empty_like", "empty_strided", "lift_fresh", "new_empty", "new_empty_strided", "resize_",
)  # fmt: skip
_WAITING = (
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select",
    "nonzero", "tolist", "unique_consecutive", "unique_dim",
)  # fmt: skip


@dataclass(frozen=True)
class KernelCount:
    """What a work called."""

    kernels: int  # calls that launch something
    waits: int  # of them, those that wait for the device
    calls: Counter[str] = field(default_factory=Counter)  # kernels by name


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _ALLOCATING and not is_view(func):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def _lists_counted(calls: Counter[str]) -> Iterator[None]:
    """Count lists made of tensors too, which no dispatch sees."""
    plain = torch.Tensor.tolist

    def tolist(own: torch.Tensor) -> Any:
        calls["tolist"] += 1
        return plain(own)

    with patch.object(torch.Tensor, "tolist", tolist):
        yield


def count_kernels(work: Callable[[], object]) -> KernelCount:
    """Return what some work calls, in the form that a GPU would get: without compiled loops."""
    counting = _Counting()
    counted = _lists_counted(counting.calls)
    with compiled_loops.switched(False), single_threaded(), counted, counting:
        work()
    waits = sum(counting.calls[name] for name in _WAITING)
    return KernelCount(counting.calls.total(), waits, counting.calls)
