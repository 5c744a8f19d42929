"""Chooses the engine of a model by a fixed rule.

The rule is a function of the device and its threads, of the kinds of layers and how much they
compute, and of whether an engine can take the model at all; nothing is timed, so that a run made
twice is the same run. The table follows `simsgd bench engines`, whose figures are in
docs/engines.md.

Letters: L workers hosted here, b samples each.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..registry import register
from ..settings import SettingError, one_line
from .attributes import attributes_kept
from .contract import (
    DEFAULT,
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
)
from .loop import Loop
from .model_cost import kind_of, work_of
from .onepass import OnePass
from .plan import Plan
from .self_check import Batch, without_extremes
from .threads import Threads
from .trees import cloned, leaves
from .vmap import Vmap
from .worker_threads import helpful

_ORDER = {  # engines by plan and by what the model is made of, the fastest first
    ("cpu", "matrices"): ("onepass", "vmap", "loop"),
    ("cpu", "convolutions"): ("onepass", "loop"),
    ("cpu", "recurrent layers"): ("loop",),
    ("gpu", "matrices"): ("onepass", "vmap", "loop"),
    ("gpu", "convolutions"): ("onepass", "vmap", "loop"),
    ("gpu", "recurrent layers"): ("loop",),
}
_HEAVY = 2**28  # multiplications of a worker's convolutions, from which on threads come first
_PER_WEIGHT = 2  # numbers that its forward makes for each weight, below which these are read once
_LARGE = 10_000_000  # numbers that a worker's forward makes, from which on each goes by itself
_MANY = 5_000_000  # the same of matrices, where several threads each take a worker
_TRIED = 2  # workers on which it is tried whether vmap or threads take a model
ENGINES: dict[str, Callable[..., GradientEngine]] = {
    "onepass": OnePass,
    "vmap": Vmap,
    "loop": Loop,
    "threads": Threads,
}


@register("engine", "auto")
class Auto(GradientEngine):
    """The fastest of the other engines that can take the model, by a fixed rule.

    `chosen` is its name, once it was chosen, and `note` why those before it were not.
    """

    chooses = True

    def __init__(
        self, model: nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        super().__init__(model, criterion, config)
        self.note = ""
        self._engine: GradientEngine | None = None

    def capturable(self) -> bool:
        """Return what the chosen engine says."""
        return self._engine is not None and self._engine.capturable()

    def chunk_size(self, workers: int) -> int:
        """Return what the chosen engine says."""
        return 1 if self._engine is None else self._engine.chunk_size(workers)

    def num_threads(self, workers: int) -> int:
        """Return what the chosen engine says."""
        return 1 if self._engine is None else self._engine.num_threads(workers)

    def halve_chunk(self, workers: int) -> int:
        """Let the chosen engine take half as many workers at a time; return how many, 0 if none."""
        if self._engine is not None:
            self.reduced_chunk = self._engine.halve_chunk(workers)
            return self.reduced_chunk
        return 0

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        The first call chooses, and one that the chosen engine declines chooses among the others.
        """
        if self._engine is None:
            self.choose(params, buffers, x, y, keys)
        assert self._engine is not None
        try:
            return self._engine(params, buffers, x, y, keys)
        except SettingError as declined:
            if declined.name != "engine" or self.chosen == "loop":
                raise
            names = order(self.model, self.plan(leaves(x)[0].device))
            later = names[names.index(self.chosen) + 1 :] if self.chosen in names else names
            why_not = [f"{self.chosen} declines a later batch: {declined.rule}"]
        self._take_first(later, why_not, params, buffers, x, y, keys)
        return self._engine(params, buffers, x, y, keys)

    def choose(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> str:
        """Return the name of the engine for such a batch; the same arguments as for a call.

        Raises `SettingError` if that is a loop although a chunk of workers was asked for.
        """
        plan = self.plan(leaves(x)[0].device)
        names = order(self.model, plan)
        first = self.config.agree(self._one_by_one(params, buffers, x, y, keys))
        if first:
            names = (first, *names)
        return self._take_first(names, [], params, buffers, x, y, keys)

    def _take_first(
        self,
        names: Sequence[str],
        why_not: list[str],
        params: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        keys: Tensor,
    ) -> str:
        """Take the first engine of those named that can take the batch."""
        for name in names:
            engine = self.made(name)
            try:
                try_out(engine, params, buffers, x, y, keys)
            except UnsupportedModel as reason:
                why_not.append(f"{name} declines: {reason}")
                continue
            if name == "loop" and self.chunk != "auto":
                told = f"has no effect with engine loop, which auto takes: {'; '.join(why_not)}"
                raise SettingError("worker_chunk", self.chunk, told, "leave it out")
            self.chosen, self.note, self._engine = name, "; ".join(why_not), engine
            return name
        raise AssertionError("a loop takes every model")

    def keep_choice(self, name: str) -> None:
        """Use the engine of that name from now on, unless chunks, its kind or amp forbid it.

        A resumed simulation so goes on with the engine it had, whatever its next batch is like.
        """
        fits = not (name == "loop" and self.chunk != "auto")
        fits = fits and not (name == "onepass" and self.amp is not None)
        if name in ENGINES and fits:
            self.chosen, self.note, self._engine = name, "", self.made(name)

    def _one_by_one(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> str:
        """Return the engine that takes one worker at a time, if that is the fastest, else "".

        So it is where convolutions make much of a worker's samples: workers together would leave
        the cache, and calls are long enough. With several threads it is so from less on, with
        matrices too, and for recurrent layers always, whose calls are too short to be shared.
        """
        first, kind = leaves(x)[0], kind_of(self.model)
        if not (self.plan(first.device).in_parts and first.device.type == "cpu"):
            return ""
        threads = "threads" if helpful(len(keys)) else ""
        if self.chunk != "auto" or (kind == "matrices" and not threads):
            return ""
        if kind == "recurrent layers":
            return threads
        with attributes_kept(self.model, self.criterion):
            work = work_of(self, params, buffers, x, y, keys)
        if kind == "matrices":
            return threads if work.elements >= _MANY else ""
        large = work.elements >= _LARGE and 2 * work.convolved >= work.multiplications
        if not threads:
            return "loop" if large else ""
        heavy = work.multiplications >= _HEAVY
        if heavy and not self.per_worker:  # else each worker reads weights of its own in any case
            heavy = work.elements >= _PER_WEIGHT * sum(p.numel() for p in params.values())
        return threads if large or heavy else ""

    def made(self, name: str) -> GradientEngine:
        """Return another engine for the same model, with the same settings."""
        return ENGINES[name](self.model, self.criterion, self.config)


def engine_note(engine: GradientEngine) -> str:
    """Return what to say of the choice of an engine, after its name."""
    return f"; {engine.note}" if isinstance(engine, Auto) and engine.note else ""


def order(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Return the names of engines to try on a model, in order."""
    return _ORDER[plan.name, kind_of(model)]


def try_out(
    engine: GradientEngine, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
) -> None:
    """Raise `UnsupportedModel` if the engine cannot take the model."""
    with attributes_kept(engine.model, engine.criterion):
        _try_out(engine, params, buffers, x, y, keys)


def _try_out(
    engine: GradientEngine, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
) -> None:
    if isinstance(engine, OnePass):
        engine.try_out(params, buffers, x, y, keys)
    elif isinstance(engine, Vmap | Threads):
        first = slice(_TRIED)
        few = Batch(params, buffers, x, y, keys, engine.per_worker).of(first)
        samples = cloned(without_extremes(few.x)), cloned(few.y)
        asked = few.params, few.buffers, *samples, few.keys
        try:
            engine.try_out(*asked) if isinstance(engine, Threads) else engine(*asked)
        except torch.OutOfMemoryError:
            raise
        except SettingError as refused:
            reason = refused.rule.removeprefix("declines this model: ")
            raise UnsupportedModel(reason) from refused
        except RuntimeError as wrong:  # the model's own are a loop's too
            raise UnsupportedModel(f"it fails ({one_line(wrong)})") from wrong
