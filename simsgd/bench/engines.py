"""Times engines for all workers' gradients beside one plain large batch.

The plain batch is the lower bound: one forward and one backward of all samples,
one gradient. As a large batch may outgrow a processor's cache, it is also timed in W parts whose
gradients are added up, and ratios are to the better of both. All take turns in one process.

Letters: W workers, b samples each, B = W * b.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..gradients import GradientEngine, Gradients
from ..gradients.contract import EngineConfig, Tensors
from ..keyed_random import RandomKey
from ..registry import find
from ..results.text_table import TextTable
from ..settings import SettingError
from ..training.devices import device_of
from ..training.environment import environment
from .cases import CASES, QUICK, Task, selected, task_of
from .floors import PARTS, PLAIN, floors
from .tables import Measured, noted, tables_by_case
from .timing import Work, in_time, rows_of, taking_turns

FLOORS = (PLAIN, PARTS)  # of a language model also torch.nn.LSTM
TIMED = ("auto", "onepass", "vmap", "loop", "threads")  # tune is one of them, compiled takes long
_WORKERS = (4, 16, 64)
_ROUNDS, _ENOUGH = 21, 15.0  # rounds at most, and seconds after which they are enough


def measure(
    quick: bool = False,
    device: str = "cpu",
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    batch: Sequence[int] = (),
) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a model, W, b and engine.

    `model`, `workers` W and `batch` b leave out all others. A row has the median, least and
    most of its milliseconds, and the median over rounds of its ratio to the best floor. Models
    that are not in this installation, and engines that decline one, are named in "notes".
    """
    device = device_of(device)
    some = workers or ((4,) if quick else _WORKERS)
    cases, notes = selected(QUICK if quick else CASES, some, model, batch)
    rows = []
    for case in in_time(cases, notes):
        task = task_of(case, device)
        lowest: dict[str, Work] = floors(task)
        engines = engines_that_take(task, TIMED, type(task.model).__name__, notes)
        seconds = taking_turns(lowest | engines, device, 3 if quick else _ROUNDS, _ENOUGH)
        known = {"model": case.name, "workers": case.workers, "batch": case.batch}
        rows += rows_of(seconds, list(lowest), known, "engine")
    return noted({"machine": environment(device), "rows": rows}, notes)


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, a table for each model, W and b."""
    return tables_by_case(measured["rows"], "engine", "plain")


def engines_that_take(
    task: Task, engines: Iterable[str], name: str, notes: list[str], own_models: bool = False
) -> "dict[str, EngineCall]":
    """Return those of `engines` that take the task; why others decline goes to `notes`."""
    works = {}
    for engine in engines:
        work = EngineCall.of(engine, task, own_models)
        try:
            work()
        except SettingError as declined:
            notes.append(f"{name}: {declined}")
            continue
        works[engine] = work
    return works


@dataclass(frozen=True)
class EngineCall:
    """An engine and what it is called with."""

    engine: GradientEngine
    params: Tensors
    buffers: Tensors
    x: Tensor
    y: Tensor
    keys: Tensor

    @classmethod
    def of(
        cls, name: str, task: Task, own_models: bool = False, plan: str = "auto"
    ) -> "EngineCall":
        """Return the engine of a name for a task, of whose workers each may have a model."""
        model, x = task.model, task.x
        buffers = {n: torch.stack([b] * len(x)) for n, b in model.named_buffers()}
        keys = RandomKey(0, torch.arange(len(x), device=x.device)).keys()
        config = EngineConfig(per_worker=own_models, plan=plan)
        engine = find("engine", name)(model, task.criterion, config)
        shared: dict[str, Tensor] = dict(model.named_parameters())
        params = models_apart(model, len(x)) if own_models else shared
        return cls(engine, params, buffers, x, task.y, keys)

    def __call__(self) -> Gradients:
        """Compute all workers' gradients."""
        return self.engine(self.params, self.buffers, self.x, self.y, self.keys)

    def choose(self) -> str:
        """Return the name of the engine that this one chooses."""
        return self.engine.choose(self.params, self.buffers, self.x, self.y, self.keys)


def models_apart(model: nn.Module, workers: int) -> dict[str, Tensor]:
    """Return parameters [W, *shape] of as many models, each `model` times another number."""
    scale = 1 + torch.arange(workers, dtype=torch.float64) / 10
    return {
        name: p.detach() * scale.to(p).view(-1, *[1] * p.dim())
        for name, p in model.named_parameters()
    }
