"""Keeps the objects that each worker has of somebody else's compressor.

Letters: L workers hosted here.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...given_object import WITHOUT_ASYNC, check_call, is_async
from ...registry import load_file
from ...settings import SettingError, one_line, require

_CALLS = {  # methods, and what each is given
    "compress": ("tensor", "name"),
    "decompress": ("tensors", "ctx"),
    "compensate": ("tensor", "name"),
    "update": ("tensor", "name", "compressor", "tensors", "ctx"),
}


class ForeignCompressor(Protocol):
    """GRACE's interface of a compressor."""

    def compress(self, tensor: Tensor, name: str) -> tuple[Tensor | Sequence[Tensor], object]:
        """Return the tensors to be sent, and a context that both ends know."""

    def decompress(self, tensors: Tensor | Sequence[Tensor], ctx: object) -> Tensor:
        """Return the values that the tensors stand for."""


class ForeignMemory(Protocol):
    """GRACE's interface of a memory."""

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        """Return what is to be compressed."""

    def update(
        self,
        tensor: Tensor,
        name: str,
        compressor: ForeignCompressor,
        tensors: Tensor | Sequence[Tensor],
        ctx: object,
    ) -> None:
        """Store what stays behind."""


@dataclass(frozen=True)
class Member:
    """The objects of one worker."""

    compressor: ForeignCompressor
    memory: ForeignMemory | None


@dataclass
class _Use:
    """The objects that live beside one state, and how often they were called with it."""

    members: list[Member]
    calls: int = 0


class WorkerObjects:
    """The objects of all hosted workers, the same for every segment."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._uses = WeakIdKeyDictionary()  # of each state's count of calls

    def begin(self, calls: Tensor, make: Callable[[int], list[Member]]) -> None:
        """Let a state begin, with its count of calls [L]; `make` objects for L workers if need be.

        The count is a segment's own; the objects are not.
        """
        if len(self.members) != len(calls):
            self.members = make(len(calls))
        self._uses[calls] = _Use(self.members)

    def of_state(self, calls: Tensor) -> list[Member]:
        """Return the objects that live beside a state, and count the call.

        Raises `SettingError` if the state went through other steps than they.
        """
        use: _Use | None = self._uses.get(calls)
        if use is None or use.calls != int(calls[0]):
            rule = "cannot be resumed: the objects of a grace compressor are in no checkpoint"
            raise SettingError("checkpoint", None, rule, "start a new run")
        use.calls += 1
        calls.add_(1)
        return use.members


def new_members(compressor: object, memory: object, workers: int) -> list[Member]:
    """Return the objects of each worker: from a class or function, or FILE.py:Name, or copied.

    Raises `SettingError` if there are no such objects, or if they lack a method.
    """
    if isinstance(compressor, str):
        path, _, name = compressor.rpartition(":")
        file = load_file(Path(path), "compressor")
        compressor = _named(file, name, path)
        memory = None if memory is None else _named(file, str(memory), path)
    made = [Member(_own(compressor), _own(memory)) for _ in range(workers)]
    _check(made[0].compressor, "compress", "decompress")
    if memory is not None:
        _check(made[0].memory, "compensate", "update")
    return made


def _named(file: ModuleType, name: str, path: str) -> object:
    make: object = vars(file).get(name)
    require(callable(make), "compressor", name, f"is no class or function in {path}")
    return make


def _own(thing: object) -> Any:
    """Return a worker's own object: of a class or function, what it makes; else a copy."""
    if isinstance(thing, type | FunctionType):
        try:
            return thing()
        except TypeError as wrong:
            rule = f"cannot be made without arguments ({one_line(wrong)})"
            fix = "name a function that makes it"
            raise SettingError("compressor", thing.__name__, rule, fix) from wrong
    return copy.deepcopy(thing)


def _check(thing: object, *methods: str) -> None:
    for name in methods:
        method = getattr(thing, name, None)
        if not callable(method):
            raise SettingError("compressor", type(thing).__name__, f"has no method {name}")
        rule = f"has an async method {name}"
        require(not is_async(method), "compressor", type(thing).__name__, rule, WITHOUT_ASYNC)
        check_call("compressor", type(thing).__name__, name, method, _CALLS[name])
