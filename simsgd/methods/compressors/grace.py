"""Run a compressor that was written for the interface of GRACE.

Letters: L workers hosted here, n elements of one segment.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...communication.messages import Foreign, State
from ...communication.messages.foreign import Decode
from ...registry import load_file, register
from ...settings import SettingError, require
from .contract import Compressor, StepInfo

_crews: Any = WeakIdKeyDictionary()  # of each state's "calls": the objects that live beside it


@dataclass
class Member:
    """The objects of one worker."""

    compressor: Any
    memory: Any


@dataclass
class Crew:
    """The objects of all hosted workers, and how often they were called for one segment."""

    members: list[Member]
    calls: int = 0


@register("compressor", "grace")
@dataclass(frozen=True)
class Grace(Compressor):
    """Run somebody's own object with compress(tensor, name) and decompress(tensors, ctx).

    Each worker has one instance, which gets one tensor at a time, in the parameter's shape and with
    the segment's name. What compress returns is sent, and counted as the bytes of those tensors;
    what decompress returns is averaged over workers. With `memory` each worker also has an object
    with compensate(tensor, name) and update(tensor, name, compressor, tensors, ctx); let the memory
    of the run be none then. Objects draw from torch's global generator, which is seeded for each
    call by run, step, worker and segment, and put back afterwards.

    A run with such objects cannot be resumed: what they know is theirs, and in no checkpoint.
    Xu et al., "GRACE", ICDCS 2021, https://github.com/sands-lab/grace.

    Differs from GRACE: what the workers sent is always averaged; aggregate() is not called.
    """

    source: Any  # FILE.py:Name, called once a worker; in Python also an object, to be copied
    memory: Any = None  # Name in the same file; in Python also an object, to be copied
    shape: tuple[int, ...] = field(default=(), init=False, repr=False)  # of the parameter
    members: list[Member] = field(default_factory=list, init=False, repr=False, compare=False)
    biased = True

    @property
    def has_own_memory(self) -> bool:  # type: ignore[override]
        """Whether the workers have a memory object of their own."""
        return self.memory is not None

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            path = self.source.rpartition(":")[0]
            fix = "give grace:FILE.py:Name"
            require(path.endswith(".py"), "compressor", self.source, "names no file and class", fix)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method for a parameter of this shape, with the same objects."""
        fitted = copy.copy(self)
        object.__setattr__(fitted, "shape", tuple(shape))
        return fitted

    def init(self, like: Tensor) -> State:
        """Return how often the objects were called for this segment, [L], on the CPU.

        Raises `SettingError` if there are no such objects.
        """
        if len(self.members) != len(like):
            self.members[:] = self._new_members(len(like))
        calls = torch.zeros(len(like), dtype=torch.int64)
        _crews[calls] = Crew(self.members)
        return {"calls": calls}

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Foreign:
        """Return what each worker's objects make of its row of `x` [L, n].

        Raises `SettingError` if the state is not the one that these objects have lived through.
        """
        members, name = _present(state), step.segment
        rows = zip(members, x, step.key.keys().tolist(), strict=True)
        spoken = [self._one(member, row, name, key) for member, row, key in rows]
        tensors, decodes, values = zip(*spoken, strict=True)
        return Foreign(list(tensors), list(decodes), torch.stack(values).to(x))

    def _one(
        self, member: Member, row: Tensor, name: str, key: int
    ) -> tuple[list[Tensor], Decode, Tensor]:
        compressor, memory = member.compressor, member.memory
        with _seeded(key, row.device), torch.no_grad():
            tensor = row.clone().view(self.shape or row.shape)
            if memory is not None:
                tensor = memory.compensate(tensor, name)
            sent, context = compressor.compress(tensor, name)
            if memory is not None:
                memory.update(tensor, name, compressor, sent, context)
            tensors = [sent] if isinstance(sent, Tensor) else list(sent)
            decode = partial(_decoded, compressor, type(sent), context, len(row))
            return tensors, decode, decode(tensors)

    def _new_members(self, workers: int) -> list[Member]:
        compressor, memory = self.source, self.memory
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
    make: object = getattr(file, name, None)
    require(callable(make), "compressor", name, f"is no class or function in {path}")
    return make


def _own(thing: Any) -> Any:
    """Return a worker's own object: of a class or function, what it makes; else a copy."""
    if isinstance(thing, type | FunctionType):
        return thing()
    return copy.deepcopy(thing)


def _check(thing: object, *methods: str) -> None:
    for method in methods:
        has = callable(getattr(thing, method, None))
        require(has, "compressor", type(thing).__name__, f"has no method {method}")


def _present(state: State) -> list[Member]:
    crew: Crew | None = _crews.get(state["calls"])
    if crew is None or crew.calls != int(state["calls"][0]):
        told = "cannot be resumed: the objects of a grace compressor keep what they know"
        raise SettingError("checkpoint", None, told, "start the run anew")
    crew.calls += 1
    state["calls"].add_(1)
    return crew.members


@contextmanager
def _seeded(key: int, device: torch.device) -> Iterator[None]:
    """Let torch's global generators of the CPU and the device start at `key`, for a while."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []):
        torch.default_generator.manual_seed(key)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key)
        yield


def _decoded(compressor: Any, kind: type, context: Any, n: int, tensors: list[Tensor]) -> Tensor:
    """Return what an object decodes, [n], from tensors in a container such as it gave them in."""
    sent: Any = tuple(tensors) if issubclass(kind, tuple) else tensors
    value: Tensor = compressor.decompress(tensors[0] if issubclass(kind, Tensor) else sent, context)
    told = f"decompresses to {value.numel()} entries of {n}"
    require(value.numel() == n, "compressor", type(compressor).__name__, told)
    return value.flatten()
