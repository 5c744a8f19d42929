"""Per-worker gradients by one forward and one backward over all workers' samples together.

Workers share their weights, so a large batch costs what W small ones do, with fewer calls. Only
the contraction that makes a weight's gradient is done worker by worker, into rows of the result.

Letters: L workers hosted here, b samples each, B = L * b of one pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import register
from ..settings import SettingError
from .contract import (
    DEFAULT,
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
    carried,
    unused_by,
)
from .folded_ops import Folded
from .generators import untouched
from .grad_accumulator import Rows
from .model_cost import kind_of, multiplications
from .self_check import Batch, compare, nan_to_zero, reference
from .worker_threads import ThreadReplicas, helpful, is_single_threaded, measured

_TRIED = 2  # workers on which the first call is compared with a loop
_CACHE = 1 << 20  # elements of a layer's result that go through a processor's cache well
_CACHE_OF_THREAD = 1 << 21  # where every thread has a part of its own
_RECURRENT = 4  # times as many in a recurrent model, whose many small calls are dear
_HEAVY = 2**26  # multiplications of all workers' convolutions, from which on threads share them
_Passed = tuple[Tensor, Tensor, int, list[str]]  # what `_pass` returns


@dataclass(frozen=True)
class _Seen:
    """What the first batch of a shape tells about one worker."""

    largest: int  # elements of a layer's largest result
    work: int  # multiplications that threads may share; 0 if they may not


@register("engine", "onepass")
class OnePass(GradientEngine):
    """All workers in one batch, their gradients kept apart: the fastest, where it knows the layers.

    It knows linear, convolution, embedding, batch, layer, group and RMS normalization, each with
    parameters of its own. A model in which anything else uses a parameter, or mixes the samples of
    a batch, is declined, never computed wrongly: autograd finds the former at every call, and the
    latter shows when the first call is compared with a loop over two workers, for which the model
    runs a few more times.
    """

    def __init__(
        self, model: torch.nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        super().__init__(model, criterion, config)
        if config.per_worker:
            rule = "needs parameters that all workers share, and here each has its own"
            raise SettingError("engine", "onepass", rule, "use engine auto, vmap or loop")
        self._seen: dict[object, _Seen] = {}  # by the shape of one worker's batch
        self._replicas: ThreadReplicas[OnePass] | None = None

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        Raises `SettingError` for a model that it declines.
        """
        try:
            return self.attempt(params, buffers, x, y, keys)
        except UnsupportedModel as reason:
            told = f"declines this model: {reason}"
            raise SettingError("engine", "onepass", told, "use engine auto, vmap or loop") from None

    def attempt(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return what a call does; raise `UnsupportedModel` for a model that it declines."""
        self.try_out(params, buffers, x, y, keys)
        size = len(keys) if is_single_threaded() else self._size(len(keys))
        after = _copied(buffers)
        space = self.space(params, len(keys))
        values = space.values

        def part(engine: OnePass, some: slice) -> _Passed:
            return engine._pass(
                params,
                {name: buffer[some] for name, buffer in after.items()},
                {name: value[some] for name, value in values.items()},
                x[some],
                y[some],
                keys[some],
            )

        parts = [slice(w, w + size) for w in range(0, len(keys), size)]
        if self._replicas is not None and len(parts) > 1 and self.num_threads(len(keys)) > 1:
            done = self._replicas.map(part, parts)
        else:
            done = [part(self, some) for some in parts]
        losses, outputs, _, missing = zip(*done, strict=True)
        unused = unused_by([own for own, part in zip(missing, losses, strict=True) for _ in part])
        return Gradients(
            values, _joined(losses), _joined(outputs), after, unused=unused, flat=space.flat
        )

    def try_out(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> None:
        """Compare the first batch of each shape with a loop.

        Raises `UnsupportedModel` for a model that this engine declines.
        """
        if self.amp is not None:
            raise UnsupportedModel(
                "its products for each worker are of one dtype, not of mixed ones"
            )
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise UnsupportedModel("its batches are not one tensor")
        like = (x.shape[1:], min(len(keys), _TRIED), self.model.training)
        if like not in self._seen:
            self._seen[like] = self._tried(params, buffers, x, y, keys)

    def chunk_size(self, workers: int) -> int:
        """Return what the first batch led to."""
        return min(workers, self._size(workers) * self.num_threads(workers))

    def num_threads(self, workers: int) -> int:
        """Return 1 unless convolutions compute much, on a CPU."""
        work = max((seen.work for seen in self._seen.values()), default=0) * workers
        able = self.chunk == "auto" and self._replicas is not None
        many = able and work >= _HEAVY and helpful(workers)
        return torch.get_num_threads() if many else 1

    def _size(self, workers: int) -> int:
        """Return how many go together; left to itself it takes parts of about equal size."""
        if not isinstance(self.chunk, str):
            return min(self.chunk, workers)
        largest = max((seen.largest for seen in self._seen.values()), default=0)
        threads = self.num_threads(workers)
        fitting = _CACHE if threads == 1 else _CACHE_OF_THREAD
        size = max(1, fitting // max(1, largest))
        rounds = math.ceil(workers / size / threads)
        return math.ceil(workers / (rounds * threads))

    def _pass(
        self, params: Tensors, buffers: Tensors, values: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> _Passed:
        """Return losses [L], outputs [L, b, ...] and the size of the largest result of a layer.

        In a recurrent model it counts for less. The last are the parameters without gradient.
        """
        rows = Rows(params, values)
        samples = x.flatten(0, 1)  # [L * b, ...]
        folded = Folded(rows, buffers, keys, len(samples), carried(self.model))
        with untouched(keys.device):
            with folded:
                output = self.output(params, folded.shared, samples)
            if not isinstance(output, Tensor):
                raise UnsupportedModel("its output is not one tensor")
            output = output.unflatten(0, (len(keys), -1))
            losses = self._losses(output, y)
            trained = {name: p for name, p in params.items() if p.requires_grad}
            found = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        _refuse(dict(zip(trained, found, strict=True)), folded.foreign)
        folded.check_buffers()
        rows.finish()
        largest = folded.largest // (_RECURRENT if rows.recurrent else 1)
        return losses.detach(), output.detach(), largest, rows.unused

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return each worker's mean loss [L] of `output` [L, b, ...]."""
        if self.criterion is F.cross_entropy and not y.is_floating_point():
            each = F.cross_entropy(output.flatten(0, 1), y.flatten(0, 1), reduction="none")
            counted = (y != -100).flatten(1).sum(1)  # targets of -100 do not count
            losses: Tensor = each.view(len(y), -1).sum(1) / counted
            return losses
        return torch.stack([self.criterion(o, t) for o, t in zip(output, y, strict=True)])

    def _tried(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> _Seen:
        """Compare with a loop over the first workers, if possible in the threads that share them.

        Raises `UnsupportedModel` if this engine cannot take the model, or workers together.
        """
        own = Batch(params, buffers, nan_to_zero(x), y, keys)
        if (
            measured()
            and self.chunk == "auto"
            and x.device.type == "cpu"
            and kind_of(self.model) == "convolutions"
        ):
            work = multiplications(self, params, buffers, x, y, keys)
            try:
                self._replicas = self._replicas or ThreadReplicas(self.model, self._replica)
                return _Seen(self._compared(own, self._replicas), work)
            except (UnsupportedModel, SettingError):  # which may be for other threads only
                self._replicas = None
        return _Seen(self._compared(own, None), 0)

    def _replica(self, model: torch.nn.Module) -> "OnePass":
        return OnePass(model, self.criterion)

    def _compared(self, own: Batch, replicas: "ThreadReplicas[OnePass] | None") -> int:
        """Compare a pass with a loop; return the elements of a layer's largest result."""
        batch, wanted = reference(self.model, self.criterion, own.of_first(_TRIED))
        values = {name: torch.empty_like(value) for name, value in wanted.values.items()}
        after = _copied(batch.buffers)
        asked = batch.params, after, values, batch.x, batch.y, batch.keys
        try:
            if replicas is None:
                loss, output, largest, _ = self._pass(*asked)
            else:
                [(loss, output, largest, _)] = replicas.map(
                    OnePass._pass, *([one] for one in asked)
                )
        except UnsupportedModel:
            raise
        except Exception as wrong:  # a loop takes the model: what fails is taking workers together
            first = str(wrong).strip().partition("\n")[0]
            raise UnsupportedModel(f"it cannot take the workers together: {first}") from wrong
        compare(Gradients(values, loss, output, after), wanted)
        return math.ceil(largest / len(batch.keys))


def _copied(buffers: Tensors) -> Tensors:
    """Return copies whose rows lie one after the other, so that workers can be taken together."""
    whole = torch.contiguous_format
    return {name: buffer.clone(memory_format=whole) for name, buffer in buffers.items()}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def _refuse(found: dict[str, Tensor | None], foreign: dict[str, str]) -> None:
    for name, gradient in found.items():
        if gradient is not None:
            by = f" ({foreign[name]})" if name in foreign else ""
            raise UnsupportedModel(f"{name} is used by something onepass does not know{by}")
