"""Finds kinks of the model at which rounding separates two gradients, such as a ReLU's zero.

Letters: W workers, M passes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import GradientEngine, Gradients
from ..gradients.contract import Tensors

_DRAWS = 8  # a unit at a kink falls on its other side in half of them
_SMALL = 1e-3  # of the largest of all tensors: the least that a tensor is held against


@dataclass(frozen=True)
class Call:
    """What an engine was asked, and the gradient that it gave."""

    params: Tensors  # the live ones
    began: Tensors  # as they were, of the same shapes
    buffers: Tensors
    x: Tensor
    y: Tensor
    keys: Tensor
    values: Tensors  # {parameter: [W, *shape]}


class RecordingEngine(GradientEngine):
    """An engine whose calls, one for each of M passes, are kept until `forget`.

    `given`, M gradients, are returned in place of its own.
    """

    def __init__(self, engine: GradientEngine) -> None:
        super().__init__(engine.model, engine.criterion, engine.config)
        self.inner = engine
        self.calls: list[Call] = []
        self.given: Iterator[Tensors] | None = None

    def chunk_size(self, workers: int) -> int:
        """Return how many workers go through the model at a time."""
        return self.inner.chunk_size(workers)

    def halve_chunk(self, workers: int) -> int:
        """Let fewer workers through at a time; see `GradientEngine`."""
        return self.inner.halve_chunk(workers)

    def forget(self) -> None:
        """Begin a step in which the gradients are the engine's own."""
        self.calls.clear()
        self.given = None

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients, or those that were given; see `GradientEngine`."""
        began = copies(params), copies(buffers)
        gradients = self.inner(params, buffers, x, y, keys)
        if self.given is not None:
            for name, value in next(self.given).items():
                gradients.values[name].copy_(value)
        self.calls.append(Call(params, *began, x, y, keys, copies(gradients.values)))
        return gradients


@dataclass(frozen=True)
class Divergence:
    """The entry in which another gradient differs most from the own, by the size of its tensor."""

    call: Call
    worker: int
    name: str
    place: int  # in the worker's flattened gradient
    apart: float
    relative: float  # `apart` over the tensor's size


def parting(engine: RecordingEngine, others: Sequence[Tensors]) -> Divergence:
    """Return where M gradients {name: [W, *shape]} differ most from the engine's last."""
    calls = zip(engine.calls, others, strict=True)
    return max((_parting(*pair) for pair in calls), key=lambda parting: parting.relative)


def is_kink(
    engine: RecordingEngine, parting: Divergence, there: Tensors, limit: float, seed: int
) -> bool:
    """Return whether parameters that are equal within `limit` part the gradients as much.

    The entry of `parting` must change by half of what it differs by, or more, at the other's
    parameters `there` or in one of some tries in which every parameter moves by `limit` at most,
    by the size of its tensor. Parameters are left as they are.
    """
    generator, call = torch.Generator().manual_seed(seed), parting.call
    tries = (_moved(call.began, limit, generator) for _ in range(_DRAWS))
    own = _entry(parting, call.values)
    return any(
        abs(_entry(parting, _gradients(engine.inner, call, params)) - own) >= parting.apart / 2
        for params in itertools.chain([there], tries)
    )


def sizes(tensors: Tensors) -> dict[str, float]:
    """Return what differences of each tensor are held against.

    It is the tensor's largest magnitude, or a thousandth of the largest of all if that is more.
    """
    largest = {name: float(tensor.abs().max()) for name, tensor in tensors.items()}
    least = max(largest.values()) * _SMALL
    return {name: max(own, least) for name, own in largest.items()}


def _parting(call: Call, other: Tensors) -> Divergence:
    size = sizes(call.values)
    entries = []
    for name, value in call.values.items():
        apart = (other[name] - value).abs().flatten(1)  # [W, n]
        worker, place = divmod(int(apart.argmax()), apart.shape[1])
        most = float(apart[worker, place])
        entries.append(Divergence(call, worker, name, place, most, most / (size[name] or 1.0)))
    return max(entries, key=lambda parting: parting.relative)


def _entry(parting: Divergence, values: Tensors) -> float:
    return float(values[parting.name][parting.worker].flatten()[parting.place])


def _moved(params: Tensors, limit: float, generator: torch.Generator) -> Tensors:
    """Return parameters that differ from these by `limit` at most, by the size of each tensor."""
    size, moved = sizes(params), {}
    for name, p in params.items():
        noise = 2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1
        moved[name] = p + (noise * limit * size[name]).to(p)
    return moved


@torch.no_grad()
def _gradients(engine: GradientEngine, call: Call, params: Tensors) -> Tensors:
    """Return what the call would have given at other parameters."""
    now = copies(call.params)
    for name, p in call.params.items():
        p.copy_(params[name])
    with torch.enable_grad():
        values = engine(call.params, call.buffers, call.x, call.y, call.keys).values
    for name, p in call.params.items():
        p.copy_(now[name])
    return values


def copies(tensors: Tensors) -> Tensors:
    """Return the tensors in memory of their own."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
