"""Run a compressor that was written for the interface of GRACE.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ...communication.messages import Foreign, State
from ...communication.messages.foreign import Decode
from ...gradients.generators import put_back
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from .contract import Compressor, StepInfo
from .worker_objects import ForeignCompressor, Member, WorkerObjects, new_members


def grace(compressor: object, memory: object = None) -> "Grace":
    """Return an object with GRACE's interface as a compressor.

    `compressor` has compress(tensor, name) -> (tensors, ctx) and decompress(tensors, ctx);
    `memory`, if there is one, compensate(tensor, name) and update(tensor, name, compressor,
    tensors, ctx). Each worker gets a copy of its own; of a class, an instance.

    >>> class Half:
    ...     def compress(self, tensor, name):
    ...         return [tensor.half()], tensor.dtype
    ...     def decompress(self, tensors, ctx):
    ...         return tensors[0].to(ctx)
    >>> grace(Half()).probe((2, 5)).payload_bytes()
    tensor([20])
    """
    return Grace(compressor, memory)


@register("compressor", "grace")
@dataclass(frozen=True)
class Grace(Compressor):
    """Run somebody's own object with compress(tensor, name) and decompress(tensors, ctx).

    Each worker has one instance, which gets one tensor at a time, in the parameter's shape and with
    the segment's name. What compress returns is sent, and counted as the bytes of those tensors;
    what decompress returns is averaged over workers. With `memory` each worker also has an object
    with compensate(tensor, name) and update(tensor, name, compressor, tensors, ctx); let the memory
    of the run be none then. Objects draw from the global generators of torch, Python and numpy,
    which are seeded for each call by run, step, worker and segment, and put back afterwards.

    A run with such objects cannot be resumed: their state is in no checkpoint.
    Xu et al., "GRACE", ICDCS 2021, https://github.com/sands-lab/grace.

    Differs from GRACE: what the workers sent is always averaged; aggregate() is not called.
    """

    source: Any  # FILE.py:Name, called once a worker; in Python also an object, to be copied
    memory: Any = None  # Name in the same file; in Python also an object, to be copied
    shape: tuple[int, ...] = field(default=(), repr=False, metadata=NOT_A_SETTING)  # of the segment
    objects: WorkerObjects = field(
        default_factory=WorkerObjects, repr=False, compare=False, metadata=NOT_A_SETTING
    )
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
        return replace(self, shape=tuple(shape))

    def init(self, like: Tensor) -> State:
        """Return how often the objects were called for this segment, [L], on the CPU.

        Raises `SettingError` if there are no such objects.
        """
        calls = torch.zeros(len(like), dtype=torch.int64)
        if not like.is_meta:  # which asks for shapes alone
            self.objects.begin(calls, partial(new_members, self.source, self.memory))
        return {"calls": calls}

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Foreign:
        """Return what each worker's objects make of its row of `x` [L, n].

        Raises `SettingError` if the state is not the one that these objects have lived through.
        """
        members = self.objects.of_state(state["calls"])
        rows = zip(members, x, step.key.keys().tolist(), strict=True)
        parts = [self._one(member, row, step.segment, key) for member, row, key in rows]
        tensors, decodes, values = zip(*parts, strict=True)
        return Foreign(list(tensors), list(decodes), torch.stack(values).to(x))

    def _one(
        self, member: Member, row: Tensor, name: str, key: int
    ) -> tuple[list[Tensor], Decode, Tensor]:
        compressor, memory = member.compressor, member.memory
        with put_back(row.device) as generators, torch.no_grad():
            generators.seed(key)
            tensor = row.clone().view(self.shape or row.shape)
            if memory is not None:
                tensor = memory.compensate(tensor, name)
                _require_tensors(memory, "compensate", tensor)
            sent, context = _pair(compressor.compress(tensor, name))
            if memory is not None:
                memory.update(tensor, name, compressor, sent, context)
            several = isinstance(sent, Iterable) and not isinstance(sent, Tensor)
            tensors = list(sent) if several else [sent]
            _require_tensors(compressor, "compress", *tensors)
            decode = partial(_decoded, compressor, type(sent), context, len(row))
            return tensors, decode, decode(tensors)


def _pair(made: Any) -> tuple[Any, Any]:
    """Return what GRACE's `compress` returns. Raises `SettingError` for anything else."""
    if not (isinstance(made, tuple) and len(made) == 2):
        rule = f"must return (tensors, context), not {type(made).__name__}"
        raise SettingError("compressor", "grace", rule)
    return made


def _require_tensors(owner: object, method: str, *made: object) -> None:
    """Raise `SettingError` for what a method of somebody's own object returns beside tensors."""
    for other in (each for each in made if not isinstance(each, Tensor)):
        rule, fix = f"must {method} to tensors, not {type(other).__name__}", "as torch.from_numpy"
        raise SettingError("compressor", type(owner).__name__, rule, f"{fix} makes of an array")


def _decoded(
    compressor: ForeignCompressor, kind: type, context: object, n: int, tensors: list[Tensor]
) -> Tensor:
    """Return what an object decodes, [n], from tensors in a container such as it gave them in."""
    sent = tuple(tensors) if issubclass(kind, tuple) else tensors
    value: Tensor = compressor.decompress(tensors[0] if issubclass(kind, Tensor) else sent, context)
    _require_tensors(compressor, "decompress", value)
    if value.is_complex():
        raise SettingError(
            "compressor", type(compressor).__name__, "decompresses to complex numbers"
        )
    if value.numel() != n:
        rule = f"must decompress to {n} entries, not {value.numel()}"
        raise SettingError("compressor", type(compressor).__name__, rule)
    return value.flatten()
