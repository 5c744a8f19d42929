"""Per-worker gradients by one forward and one backward over all workers' samples together.

Workers share their weights, so a large batch costs what W small ones do, with fewer calls. Only
the contraction that makes a weight's gradient is done worker by worker, into rows of the result.

Letters: L workers hosted here, b samples each, B = L * b of one pass.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import register
from ..settings import SettingError, require
from .agreement import Batch, compare, judged, sound
from .contract import Criterion, Declined, GradientEngine, Gradients, Tensors, carried
from .folded import Folded
from .rows import Rows

_TRIED = 2  # workers on which the first call is compared with a loop
_CACHE = 1 << 20  # elements of a layer's result that go through a processor's cache well
_RECURRENT = 4  # times as many in a recurrent model, whose many small calls are dear


@register("engine", "onepass")
class OnePass(GradientEngine):
    """All workers in one batch, their gradients kept apart: the fastest, where it knows the layers.

    It knows linear, convolution, embedding, batch, layer, group and RMS normalisation, each with
    parameters of its own. A model in which anything else uses a parameter, or mixes the samples of
    a batch, is declined, never computed wrongly: autograd finds the former at every call, and the
    latter shows when the first call is compared with a loop over two workers, for which the model
    runs a few more times.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        criterion: Criterion,
        chunk: int | str = "auto",
        per_worker: bool = False,
    ) -> None:
        super().__init__(model, criterion, chunk, per_worker)
        rule = "needs parameters that all workers share, and here each has its own"
        require(not per_worker, "engine", "onepass", rule, "use engine auto, vmap or loop")
        self._largest: dict[Any, int] = {}  # of one worker, by the shape of its batch

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        Raises `SettingError` for a model that it declines.
        """
        try:
            return self.attempt(params, buffers, x, y, keys)
        except Declined as reason:
            told = f"declines this model: {reason}"
            raise SettingError("engine", "onepass", told, "use engine auto, vmap or loop") from None

    def attempt(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return what a call does; raise `Declined` for a model that it declines."""
        largest = self.try_out(params, buffers, x, y, keys)
        size = self._size(len(keys), largest)
        after = _copied(buffers)
        values = self.space(params, len(keys))
        losses, outputs = [], []
        for some in (slice(w, w + size) for w in range(0, len(keys), size)):
            loss, output, _ = self._pass(
                params,
                {name: buffer[some] for name, buffer in after.items()},
                {name: value[some] for name, value in values.items()},
                x[some],
                y[some],
                keys[some],
            )
            losses.append(loss)
            outputs.append(output)
        return Gradients(values, _joined(losses), _joined(outputs), after)

    def try_out(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> int:
        """Return the elements of a layer's largest result for one worker.

        The first batch of each shape is compared with a loop. Raises `Declined` for a model that
        this engine declines.
        """
        if self.amp is not None:
            raise Declined("its products for each worker are of one dtype, not of mixed ones")
        like = (x.shape[1:], min(len(keys), _TRIED), self.model.training)
        if like not in self._largest:
            self._largest[like] = self._tried(params, buffers, x, y, keys)
        return self._largest[like]

    def at_once(self, workers: int) -> int:
        """Return what the first batch led to."""
        return self._size(workers, max(self._largest.values(), default=0))

    def _size(self, workers: int, largest: int) -> int:
        """Return how many go at a time; `largest` is that of a layer's result for a worker.

        Left to itself it takes parts of about equal size.
        """
        if not isinstance(self.chunk, str):
            return min(self.chunk, workers)
        size = max(1, _CACHE // largest) if largest else workers
        return math.ceil(workers / math.ceil(workers / size))

    def _pass(
        self, params: Tensors, buffers: Tensors, values: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        """Return losses [L], outputs [L, b, ...] and the size of the largest result of a layer.

        In a recurrent model it counts for less.
        """
        rows = Rows(params, values)
        samples = x.flatten(0, 1)  # [L * b, ...]
        folded = Folded(rows, buffers, keys, len(samples), carried(self.model))
        with folded:
            output = self.output(params, folded.shared, samples)
        output = output.unflatten(0, (len(keys), -1))
        losses = self._losses(output, y)
        found = torch.autograd.grad(losses.sum(), list(params.values()), allow_unused=True)
        _refuse(dict(zip(params, found, strict=True)), folded.foreign)
        folded.check_buffers()
        rows.finish()
        largest = folded.largest // (_RECURRENT if rows.recurrent else 1)
        return losses.detach(), output.detach(), largest

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return each worker's mean loss [L] of `output` [L, b, ...]."""
        if self.criterion is F.cross_entropy and not y.is_floating_point():
            each = F.cross_entropy(output.flatten(0, 1), y.flatten(0, 1), reduction="none")
            counted = (y != -100).flatten(1).sum(1)  # targets of -100 do not count
            losses: Tensor = each.view(len(y), -1).sum(1) / counted
            return losses
        return torch.stack([self.criterion(o, t) for o, t in zip(output, y, strict=True)])

    def _tried(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> int:
        """Compare with a loop over the first workers; return the largest result for one worker."""
        own = Batch(params, buffers, sound(x), y, keys).of_first(_TRIED)
        batch, wanted = judged(self.model, self.criterion, own)
        values = {name: torch.empty_like(value) for name, value in wanted.values.items()}
        after = _copied(batch.buffers)
        try:
            loss, output, largest = self._pass(
                batch.params, after, values, batch.x, batch.y, batch.keys
            )
        except Declined:
            raise
        except Exception as wrong:  # a loop takes the model: what fails is taking workers together
            first = str(wrong).strip().partition("\n")[0]
            raise Declined(f"it cannot take the workers together: {first}") from wrong
        compare(Gradients(values, loss, output, after), wanted)
        return math.ceil(largest / len(batch.keys))


def _copied(buffers: Tensors) -> Tensors:
    """Return copies whose rows lie one after the other, so that workers can be taken together."""
    whole = torch.contiguous_format
    return {name: buffer.clone(memory_format=whole) for name, buffer in buffers.items()}


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _refuse(found: dict[str, Tensor | None], foreign: dict[str, str]) -> None:
    for name, gradient in found.items():
        if gradient is not None:
            by = f" ({foreign[name]})" if name in foreign else ""
            raise Declined(f"{name} is used by something onepass does not know{by}")
