"""Compares an engine's gradients with those of a loop over workers.

Letters: L workers, b samples each.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .attributes import attributes_kept
from .contract import (
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
)
from .loop import Loop
from .trees import Tree, cloned, leaves, mapped, row

Pair = tuple[Tensor, Tensor]  # what an engine gave, and what was wanted

BYPASSED = "the loss uses parameters past the forward, as where the criterion reads the model's"

_CLOSE, _ROUGH = 1e-9, 5e-2  # relative distance, in float64 and in other dtypes
_ALIKE = 1e-4  # of the same operations, in any dtype
_HUGE = 1e10
_NOTHING = 1e-3  # of all of a kind, below which a tensor is compared as if it were that much


@dataclass(frozen=True)
class Batch:
    """What an engine is given; shapes as in `GradientEngine`."""

    params: Tensors
    buffers: Tensors
    x: Tensor
    y: Tensor
    keys: Tensor
    per_worker: bool = False  # parameters have a row for each worker

    def once_more(self, buffers: Tensors) -> "Batch":
        """Return the same with other buffers, and with samples that may be written into."""
        return replace(self, buffers=buffers, x=cloned(self.x), y=cloned(self.y))

    def of(self, some: slice) -> "Batch":
        """Return the part of some workers."""
        buffers = {name: buffer[some] for name, buffer in self.buffers.items()}
        x, y, keys = (row(t, some) for t in (self.x, self.y, self.keys))
        params = self.params
        if self.per_worker:
            params = {name: p[some] for name, p in params.items()}
        return Batch(params, buffers, x, y, keys, self.per_worker)

    def apart(self) -> "Batch":
        """Return the same with other models where each worker has its own.

        In the first step those are what the model itself has, which something may read past them.
        """
        if not self.per_worker:
            return self
        return replace(self, params={n: _turned(p.detach()) for n, p in self.params.items()})

    def in_float64(self) -> "Batch":
        """Return the same in float64, targets apart."""
        params = {n: _double(p.detach()).requires_grad_() for n, p in self.params.items()}
        buffers = {name: _double(buffer) for name, buffer in self.buffers.items()}
        return replace(self, params=params, buffers=buffers, x=mapped(_double, self.x))


def check_against_loop(
    engine: GradientEngine, batch: Batch, workers: int, *, same: bool = False
) -> None:
    """Raise `UnsupportedModel` if what an engine attempts is not what a loop over workers gives.

    One that does the `same` operations is compared in the batch's own dtype. The model's own errors
    are raised, and those of the engine.
    """
    few = replace(batch, x=without_extremes(batch.x)).of(slice(workers)).apart()
    with attributes_kept(engine.model, engine.criterion):
        find = _looped if same else reference
        own, wanted = find(engine.model, engine.criterion, few, engine.config)
    with attributes_kept(engine.model, engine.criterion):
        got = engine.attempt(own.params, own.buffers, cloned(own.x), cloned(own.y), own.keys)
    compare(got, wanted, engine.model, _ALIKE if same else None)


def reference(
    model: nn.Module, criterion: Criterion, batch: Batch, config: EngineConfig
) -> tuple[Batch, Gradients]:
    """Return what to compare on, and a loop's gradients there.

    It is in float64 if the model can: in float32 a unit whose input is zero up to rounding may be
    on in one computation and off in another, which moves small gradients by percents. One worker
    goes before as it is, and what that leaves in caches of no module, such as a function's, stays.
    """
    with attributes_kept(model, criterion):
        _looped(model, criterion, batch.of(slice(1)), config)
    try:
        with attributes_kept(model, criterion):
            return _looped(model, criterion, batch.in_float64(), config)
    except Exception:  # whatever a model says to float64; its own errors come again below
        with attributes_kept(model, criterion):
            return _looped(model, criterion, batch, config)


def without_extremes(x: Tree) -> Tree:
    """Return inputs with 0 for what is huge or not finite.

    Whether samples mix does not show in numbers that overflow, or beside which others vanish.
    """
    return mapped(lambda t: _within(t) if t.is_floating_point() else t, x)


def _within(t: Tensor) -> Tensor:
    return t.where(t.abs() < _HUGE, 0)


def compare(
    got: Gradients, wanted: Gradients, model: nn.Module | None = None, close: float | None = None
) -> None:
    """Raise `UnsupportedModel` unless the results are the same up to rounding.

    The gradients of what is frozen in a model are not compared: no step has them.
    """
    close = close or (_CLOSE if wanted.loss.dtype == torch.float64 else _ROUGH)
    outputs = {
        f"output{place or ''}": both
        for place, both in enumerate(zip(leaves(got.output), leaves(wanted.output), strict=True))
    }
    given = {"loss": (got.loss, wanted.loss), **outputs}
    buffers = {name: (got.buffers[name], buffer) for name, buffer in wanted.buffers.items()}
    moved = [both for both in buffers.values() if not torch.equal(*both)]
    name = _first_apart(given, close, 0) or _first_apart(buffers, close, _least_size(moved))
    if name:
        raise UnsupportedModel(f"{name} is not what a loop over workers gives: samples are mixed")
    params = {} if model is None else dict(model.named_parameters())
    frozen = {name for name, p in params.items() if not p.requires_grad}
    gradients = {n: (got.values[n], value) for n, value in wanted.values.items() if n not in frozen}
    if name := _first_apart(gradients, close, _least_size(gradients.values())):
        raise UnsupportedModel(f"the gradient of {name} is not what a loop over workers gives")


def _looped(
    model: nn.Module, criterion: Criterion, batch: Batch, config: EngineConfig
) -> tuple[Batch, Gradients]:
    loop = Loop(model, criterion, config)
    x, y = cloned(batch.x), cloned(batch.y)
    return batch, loop(batch.params, batch.buffers, x, y, batch.keys)


def _least_size(pairs: Iterable[Pair]) -> float:
    """Return the size below which a tensor among `pairs` is rounding.

    Such is the gradient of a bias before batch normalization, and the mean of what that centered.
    """
    return _NOTHING * math.hypot(*(float(_size(wanted)) for _, wanted in pairs))


def _first_apart(pairs: Mapping[str, Pair], close: float, least: float) -> str:
    """Return the first name whose tensors differ by more than `close` times their size, else "".

    A size counts as `least` at least.
    """
    for name, (got, wanted) in pairs.items():
        size = max(float(_size(wanted)), least)
        if got.shape != wanted.shape or not _distance(got, wanted) <= close * size:
            return name
    return ""


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the norm of what differs; what is infinite or NaN in both does not."""
    one, other = _parts(one), _parts(other)
    same = (one == other) | (one.isnan() & other.isnan())
    return _norm((one - other).masked_fill(same, 0))


def _size(value: Tensor) -> Tensor:
    """Return the norm of what is finite."""
    return _norm(_parts(value).nan_to_num(0, 0, 0))


def _norm(value: Tensor) -> Tensor:
    norm: Tensor = value.norm()
    return norm


def _turned(rows: Tensor) -> Tensor:
    """Return [L, *shape] of the same size and other order."""
    return 1.25 * rows if rows.dim() == 1 else rows.flip(min(2, rows.dim() - 1))


def _parts(value: Tensor) -> Tensor:
    """Return numbers in float64, complex ones as their real and imaginary parts."""
    real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return real.double()


def _double(tensor: Tensor) -> Tensor:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(wide) if tensor.is_floating_point() or tensor.is_complex() else tensor
