"""The contract of a gradient engine, and its settings.

Letters: L workers hosted here, b samples each.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..settings import SettingError
from .flat_rows import FlatRows
from .plan import Plan, plan_of
from .trees import Tree, leaves, mapped

Criterion = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> mean loss, a scalar
Tensors = dict[str, Tensor]

_SCALE = 1024.0  # of losses in float16, whose smallest number is 6e-8


def carried(model: nn.Module) -> tuple[str, ...]:
    """Return the buffers in which a model keeps a state of each sample for the next batch.

    They are [b, ...] each, and the model says so in its attribute `carried`. Raises `SettingError`
    if that is no tuple of names.
    """
    names = getattr(model, "carried", ())
    if not isinstance(names, tuple | list):
        rule = f"declares carried = {names}, which must be a tuple of the names of buffers"
        raise SettingError("model", None, rule)
    return tuple(names)


class UnsupportedModel(Exception):
    """What an engine raises rather than return a wrong gradient; its text is the reason."""


@dataclass(frozen=True)
class Gradients:
    """What one forward and backward of all hosted workers gives.

    An engine may write the next call's gradients into the same `values`.
    """

    values: Tensors  # {parameter: [L, *shape]}, zeros where a parameter was not used
    loss: Tensor  # each worker's mean loss, [L]
    output: Tree  # the model's, [L, b, ...]
    buffers: Tensors  # {buffer: [L, *shape]}: each worker's own BatchNorm statistics
    squares: Tensors | None = None  # {parameter: [L, *shape]}, see `sample_squares`
    unused: Tensors = field(
        default_factory=dict
    )  # {parameter: [L] bool}: who did not use it, if any
    flat: tuple[Tensor, ...] = ()  # [L, P] for each dtype, see `FlatRows`; `values` are views of it


def _own(choice: str) -> str:
    return choice


@dataclass(frozen=True)
class EngineConfig:
    """What all engines can be told."""

    chunk: int | str = "auto"  # workers that go through the model at a time, at least 1, or "auto"
    per_worker: bool = False  # parameters have a row for each worker
    plan: str = "auto"  # of a device, see `plan_of`
    amp: torch.dtype | None = None  # that `torch.autocast` computes in; gradients keep their own
    agree: Callable[[str], str] = _own  # what rank 0 was given, where processes share the workers


DEFAULT = EngineConfig()


def _detached(output: Tensor, dtype: torch.dtype) -> Tensor:
    return output.detach().to(dtype) if output.is_floating_point() else output.detach()


def _scalar(loss: object) -> Tensor:
    """Return a criterion's loss. Raises `SettingError` for anything but one number."""
    if inspect.iscoroutine(loss):
        loss.close()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else "no tensor"
        )
        raise SettingError("criterion", None, f"returns {shape}", "return the mean, one number")
    if loss.is_complex():
        rule = f"returns a complex number, {str(loss.dtype).removeprefix('torch.')}"
        raise SettingError("criterion", None, rule, "return the mean, one real number")
    return loss.reshape(()) if loss.dim() else loss


def require_gradient(loss: Tensor) -> None:
    """Raise `SettingError` for a loss that no parameter has led to."""
    if not loss.requires_grad:
        fix = "detach neither output nor loss, and compute them without argmax or torch.no_grad"
        raise SettingError("model", None, "gives a loss without a gradient", fix)


def unused_by(missing: Sequence[Collection[str]]) -> Tensors:
    """Return `Gradients.unused` of the names that each of L workers did not use."""
    names = dict.fromkeys(name for own in missing for name in own)
    return {name: torch.tensor([name in own for own in missing]) for name in names}


class GradientEngine(ABC):
    """Computes the gradient of each worker's mean loss."""

    chooses: ClassVar[bool] = False  # another engine, on the first batch or when asked to
    chosen: str = ""  # its name
    operation_threads: int | None = None  # that a call may use; None: as many as torch has
    reduced_chunk: int = 0  # workers at a time since memory ran out; 0: it did not

    def __init__(
        self, model: nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.config = config
        self._space: FlatRows | None = None

    @property
    def chunk(self) -> int | str:
        """How many workers go through the model at a time, or "auto"."""
        return self.reduced_chunk or self.config.chunk

    @property
    def per_worker(self) -> bool:
        """Whether parameters have a row for each worker."""
        return self.config.per_worker

    def plan(self, device: torch.device) -> Plan:
        """Return the ways to compute on a device."""
        return plan_of(self.config.plan, device.type)

    @property
    def amp(self) -> torch.dtype | None:
        """The dtype of mixed precision; None: the parameters' own alone."""
        return self.config.amp

    def choose(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> str:
        """Return the name of the engine for such a batch; the same arguments as for a call."""
        return self.chosen

    def keep_choice(self, name: str) -> None:
        """Use the engine of that name from now on, where this one chooses."""
        return

    def chunk_size(self, workers: int) -> int:
        """Return how many of `workers` workers go through the model at a time, once one did."""
        return 1

    def capturable(self) -> bool:
        """Return whether a call, after the first of its shape, waits for no device."""
        return False

    def num_threads(self, workers: int) -> int:
        """Return by how many threads at once these are computed, each with a part of them."""
        return 1

    def halve_chunk(self, workers: int) -> int:
        """Let half as many workers through at a time from now on; return how many, 0 if none."""
        fewer = self.chunk_size(workers) // 2
        if fewer:
            self.reduced_chunk = fewer
        return fewer

    @abstractmethod
    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients for batches `x` [L, b, ...], `y` [L, b, ...].

        `params` {name: [*shape]} are shared, or [L, *shape] each with `per_worker`; `buffers`
        {name: [L, *shape]} are per worker and left unchanged; `keys` [L] int64 are each worker's
        random stream, for dropout.
        """

    def loss(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return one worker's mean loss and output; buffers are updated in place."""
        with torch.autocast(leaves(x)[0].device.type, self.amp, enabled=self.amp is not None):
            output = self.output(params, buffers, x)
            loss = _scalar(self.criterion(output, y))
        return loss, mapped(lambda own: _detached(own, loss.dtype), output)

    def attempt(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return what a call does; raise `UnsupportedModel` for a model that it declines."""
        return self(params, buffers, x, y, keys)

    @property
    def scale(self) -> float:
        """What a loss is multiplied by before its backward, so that float16 loses nothing small."""
        return _SCALE if self.amp == torch.float16 else 1.0

    def output(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """Return the model's output; parameters that are its own already need not be put in.

        `buffers` then has the tensors that the model leaves there.
        """
        own = dict(self.model.named_parameters())
        given = {name: p for name, p in params.items() if own.get(name) is not p} | buffers
        if not given:
            plain: Tensor = self.model(x)
            self._require_detached({})
            return plain
        lent = {other: given[name] for name in given for other in self.names[name]}
        output: Tensor = torch.func.functional_call(self.model, lent, (x,), tie_weights=False)
        buffers.update({name: lent[name] for name in buffers})
        self._require_detached(buffers)
        return output

    def _require_detached(self, buffers: Tensors) -> None:
        """Raise `SettingError` for a carried buffer that holds on to the graph of a batch."""
        for name in carried(self.model):
            state = buffers[name] if name in buffers else self.model.get_buffer(name)
            if state.requires_grad:
                rule = f"writes {name}, which it carries, with the gradient's graph"
                fix = f"detach what is copied there, as self.{name}.copy_(new.detach()) does"
                raise SettingError("model", type(self.model).__name__, rule, fix)

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """All names of each parameter and buffer, its own first, of a shared module only one.

        `functional_call` takes a module under two names for two, and puts the wrong tensors back.
        """
        every: dict[int, list[str]] = {}
        for path, module in self.model.named_modules():
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None:
                    every.setdefault(id(tensor), []).append(f"{path}.{key}".lstrip("."))
        return {names[0]: names for names in every.values()}

    def space(self, params: Tensors, workers: int) -> FlatRows:
        """Return {name: [L, *shape]} to write gradients to; the same memory at every call.

        Fresh memory of that size would cost as much time as many a small model's backward.
        """
        like = {name: p[0] for name, p in params.items()} if self.per_worker else params
        if self._space is None or not self._space.fits(like, workers):
            self._space = FlatRows.empty(like, workers)
        return self._space
