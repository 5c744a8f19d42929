"""Per-worker gradients by one forward and one backward over all workers' samples together.

Where workers share their weights, a large batch costs what W small ones do, with fewer calls: only
the contraction that makes a weight's gradient is done worker by worker, into rows of the result.
Where each has its own, products are batched and convolutions grouped.

Letters: L workers hosted here, b samples each, B = L * b of one pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..registry import register
from ..settings import SettingError
from .attributes import Switches, attributes_kept
from .contract import (
    DEFAULT,
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
    unused_by,
)
from .flat_rows import FlatRows
from .folded_pass import FoldedPass, Passed
from .model_cost import kind_of, work_of
from .plan import Plan
from .self_check import Batch, compare, reference, without_extremes
from .training_mode import modes
from .trees import copy_all
from .worker_threads import ThreadReplicas, helpful, is_single_threaded, measured

_QUANTIZED = "torch.ao.quantization"  # whose modules watch numbers by kernels of their own
_TRIED = 3  # workers on which the first call is compared with a loop; of two, what counts all
# samples once looks like what counts those of each twice
_CACHE = 1 << 20  # elements of a layer's result that go through a processor's cache well
_CACHE_OF_THREAD = 1 << 21  # where every thread has a part of its own
_RECURRENT = 4  # times as many in a recurrent model, whose many small calls are dear
_HEAVY = 2**26  # multiplications of all workers' convolutions, from which on threads share them


@dataclass(frozen=True)
class _Seen:
    """What the first batch of a shape tells about one worker."""

    largest: int  # elements of a layer's largest result
    work: int  # multiplications that threads may share; 0 if they may not
    counted: frozenset[int]  # see `Folding`


@register("engine", "onepass")
class OnePass(GradientEngine):
    """All workers in one batch, their gradients kept apart: the fastest, where it knows the layers.

    It knows linear, convolution, embedding, attention, batch, layer, group and RMS normalization,
    parameters that are added or multiplied, and what is computed from parameters alone. A model in
    which anything else uses a parameter, or mixes the samples of a batch, is declined, never
    computed wrongly: autograd finds the former at every call, and the latter shows when the first
    call is compared with a loop over a few workers, for which the model runs some more times.
    """

    def __init__(
        self, model: torch.nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        super().__init__(model, criterion, config)
        self._seen: dict[object, _Seen] = {}  # by the shape of one worker's batch, and switches
        self._switches = Switches(model)
        self._replicas: ThreadReplicas[OnePass] | None = None
        self._plan: Plan | None = None

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
        seen = self.try_out(params, buffers, x, y, keys)
        size = len(keys) if is_single_threaded() else self._size(len(keys))
        space, after = self.space(params, len(keys)), _copied(buffers)
        batch = Batch(params, after, x, y, keys, self.per_worker)

        def part(engine: OnePass, some: slice) -> Passed:
            return engine.passed(batch.of(some), space.of(some), seen.counted)

        parts = [slice(w, w + size) for w in range(0, len(keys), size)]
        if self._replicas is not None and len(parts) > 1 and self.num_threads(len(keys)) > 1:
            done = self._replicas.map(part, parts)
        else:
            done = [part(self, some) for some in parts]
        return Gradients(
            space.values,
            _joined([own.losses for own in done]),
            _joined([own.output for own in done]),
            after,
            unused=unused_by([own.unused for own in done for _ in own.losses]),
            flat=space.flat,
        )

    def passed(self, batch: Batch, space: FlatRows, counted: frozenset[int] | None) -> Passed:
        """Return what one pass of some workers gives; `space` gets their gradients."""
        return FoldedPass(self, self.plan(batch.x.device), counted)(batch, space)

    def try_out(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> _Seen:
        """Compare the first batch of each shape with a loop, and return what it tells.

        Raises `UnsupportedModel` for a model that this engine declines.
        """
        if self.amp is not None:
            raise UnsupportedModel(
                "its products for each worker are of one dtype, not of mixed ones"
            )
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise UnsupportedModel("its batches are not one tensor")
        self._plan = self.plan(x.device)
        like = (x.shape[1:], min(len(keys), _TRIED), modes(self.model), self._switches.now())
        if like not in self._seen:
            self._seen[like] = self._tried(params, buffers, x, y, keys)
        return self._seen[like]

    def capturable(self) -> bool:
        """Return True: nothing here waits."""
        return True

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
        if self._plan is not None and not self._plan.in_parts:
            return workers
        largest = max((seen.largest for seen in self._seen.values()), default=0)
        threads = self.num_threads(workers)
        fitting = _CACHE if threads == 1 else _CACHE_OF_THREAD
        size = max(1, fitting // max(1, largest))
        rounds = math.ceil(workers / size / threads)
        return math.ceil(workers / (rounds * threads))

    def _tried(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> _Seen:
        """Compare with a loop over the first workers, if possible in the threads that share them.

        Raises `UnsupportedModel` if this engine cannot take the model, or workers together.
        """
        if any(type(own).__module__.startswith(_QUANTIZED) for own in self.model.modules()):
            raise UnsupportedModel("its quantization looks at all samples together")
        own = Batch(params, buffers, without_extremes(x), y, keys, self.per_worker)
        if (
            self.plan(x.device).threads
            and measured()
            and not self.per_worker
            and self.chunk == "auto"
            and x.device.type == "cpu"
            and kind_of(self.model) == "convolutions"
        ):
            work = work_of(self, params, buffers, x, y, keys).multiplications
            try:
                self._replicas = self._replicas or ThreadReplicas(self.model, self._replica)
                return self._compared(own, self._replicas, work)
            except (UnsupportedModel, SettingError):  # which may be for other threads only
                self._replicas = None
        return self._compared(own, None, 0)

    def _replica(self, model: torch.nn.Module) -> "OnePass":
        return OnePass(model, self.criterion, self.config)

    def _compared(self, own: Batch, replicas: "ThreadReplicas[OnePass] | None", work: int) -> _Seen:
        """Compare a pass with a loop, and return what it tells.

        A length that is the batch's by chance is taken for a number of samples at first.
        """
        with attributes_kept(self.model, self.criterion):  # which may be of float64 by then
            few = own.of(slice(_TRIED)).apart()
            batch, wanted = reference(self.model, self.criterion, few, self.config)
            try:
                return self._compared_as(batch, wanted, replicas, work, None)
            except UnsupportedModel as declined:
                try:
                    return self._compared_as(batch, wanted, replicas, work, frozenset())
                except UnsupportedModel:
                    raise declined from None

    def _compared_as(
        self,
        batch: Batch,
        wanted: Gradients,
        replicas: "ThreadReplicas[OnePass] | None",
        work: int,
        counted: frozenset[int] | None,
    ) -> _Seen:
        batch = batch.once_more(_copied(batch.buffers))
        like = {name: value[0] for name, value in wanted.values.items()}
        space = FlatRows.empty(like, len(batch.keys))
        try:
            if replicas is None:
                done = self.passed(batch, space, counted)
            else:
                asked = [batch], [space], [counted]
                [done] = replicas.map(OnePass.passed, *asked)
        except UnsupportedModel:
            raise
        except Exception as wrong:  # a loop takes the model: what fails is taking workers together
            first = str(wrong).strip().partition("\n")[0]
            raise UnsupportedModel(f"it cannot take the workers together: {first}") from wrong
        got = Gradients(space.values, done.losses, done.output, batch.buffers)
        compare(got, wanted, self.model)
        largest = done.largest // (_RECURRENT if done.recurrent else 1)
        return _Seen(math.ceil(largest / len(batch.keys)), work, done.counted)


def _copied(buffers: Tensors) -> Tensors:
    """Return copies whose rows lie one after the other, so that workers can be taken together."""
    whole = torch.contiguous_format
    copies = {n: torch.empty_like(buffer, memory_format=whole) for n, buffer in buffers.items()}
    copy_all([*copies.values()], [*buffers.values()])
    return copies


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])
