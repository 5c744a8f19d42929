"""Measures how much memory tensors take at most during a computation, on any device."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """Within it, counts the bytes of tensors that come into being, until they are gone.

    >>> import torch
    >>> with Allocations() as counted:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1).sum()
    >>> counted.peak
    8004

    What libraries use inside an operation is not seen, nor what NumPy or other threads do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0  # bytes
        self.peak = 0
        self._seen: dict[int, int] = {}  # bytes of the storages that are alive, by identity

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Count what an operation returns, unless it was there before."""
        before = {_identity(t) for t in tensors_in([args, kwargs or {}])}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if _identity(tensor) not in before:
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        key, storage = _identity(tensor), tensor.untyped_storage()
        if key in self._seen:
            return
        self._seen[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._seen.pop(key, 0)


def _identity(tensor: Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    return int(storage._cdata)


def tensors_in(values: object) -> list[Tensor]:
    """Return the tensors in nested dicts, lists and tuples."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def peak_of(work: Callable[[], object]) -> int:
    """Return the most bytes that tensors made by `work` take at a time, its result included."""
    counted = Allocations()
    with counted:
        result = work()
    del result
    return counted.peak


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the elements of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
