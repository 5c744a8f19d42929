"""Checks that a device computes what the CPU does, and that its steps do not wait for it.

Letters: L workers, b samples each, n elements of one segment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..gradients import Gradients
from ..gradients.contract import Tensors
from ..gradients.cuda_graph import CudaGraphs
from ..keyed_random import RandomKey
from ..methods.compressors import StepInfo, composed
from .cases import QUICK, Case, Task, selected, task_of
from .engines import EngineCall
from .kernels import METHODS
from .step import simulator, step_of
from .tables import Row
from .timing import in_time

_ENGINES = (("onepass", "cpu"), ("onepass", "gpu"), ("vmap", "auto"), ("loop", "auto"))
_CASES = (*QUICK, Case("transformer_lm", "emb=16,layers=1,heads=2", (8,), 2, vocabulary=20))
_WORKERS, _CLOSE = 3, 1e-10  # relative distance in float64
_CALLS = 4  # of which the second is captured and those after it are replayed
_SHAPE = (24, 50)  # of the segment that is compressed


def agreement(device: str, specs: Sequence[str], notes: list[str]) -> list[Row]:
    """Return how far gradients and messages on a device are from those on the CPU, in float64.

    What there is no time for is named in `notes`.
    """
    cases, _ = selected(_CASES, (_WORKERS,))
    rows = []
    for case in in_time(cases, notes, lambda case: f"gradients of {case.name}"):
        for per_worker in (False, True):
            wanted = _gradients(case, "cpu", "loop", "auto", per_worker)
            whose = "a model each" if per_worker else "one model"
            for engine, plan in _ENGINES:
                got = _gradients(case, device, engine, plan, per_worker)
                name = f"{engine}, plan {plan}" if engine == "onepass" else engine
                check = f"gradients by {name}: {case.name}, {whose}"
                rows.append(_row(check, _distance(got.values, wanted.values)))
            if device.startswith("cuda"):
                check = f"gradients by CUDA graph: {case.name}, {whose}"
                rows.append(
                    _row(check, _distance(_replayed(case, device, per_worker), wanted.values))
                )
    for spec in in_time(specs, notes, lambda spec: f"messages of {spec}"):
        here, there = (_message(spec, place) for place in ("cpu", device))
        rows.append(_row(f"message of {spec}", _distance({"": there}, {"": here})))
    return rows


def waits(device: str, notes: list[str]) -> list[Row]:
    """Return which methods' steps wait for a GPU, as torch itself finds."""
    rows = []
    case = selected(QUICK[1:], (_WORKERS,))[0]
    for name in in_time(METHODS if case else (), notes, lambda name: f"the waits of {name}"):
        task = task_of(case[0], device)
        step = step_of(task, simulator(task, plan="gpu", **METHODS[name]))
        step()
        step()
        rows.append({"table": "waits", "method": name, "waits": _synchronizes(step)})
    return rows


def _synchronizes(step: Any) -> bool:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as wrong:
        if "synchroniz" not in str(wrong):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _gradients(case: Case, device: str, engine: str, plan: str, per_worker: bool) -> Gradients:
    task = _doubled(task_of(case, "cpu"), device)
    return EngineCall.of(engine, task, per_worker, plan)()


def _replayed(case: Case, device: str, per_worker: bool) -> Tensors:
    """Return the gradients of a CUDA graph. Raises `RuntimeError` if there is none."""
    call = EngineCall.of("onepass", _doubled(task_of(case, "cpu"), device), per_worker)
    graphs = CudaGraphs(call.engine)
    for _ in range(_CALLS):
        found = graphs(call.params, call.buffers, call.x, call.y, call.keys)
    if graphs.why_not:
        raise RuntimeError(graphs.note)
    return found.values


def _doubled(task: Task, device: str) -> Task:
    x = task.x.double() if task.x.is_floating_point() else task.x
    model = task.model.double().to(device).train()
    return Task(model, task.criterion, x.to(device), task.y.to(device))


def _message(spec: str, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    n = _SHAPE[0] * _SHAPE[1]
    x = torch.randn(_WORKERS, n, generator=generator, dtype=torch.float64).to(device)
    compressor = composed(spec).for_shape(_SHAPE)
    key = RandomKey(0, torch.arange(_WORKERS, device=device)).fold_in(0, "segment")
    step = StepInfo(key, segment="segment", gradient=x, global_max=x.abs().max().view(1, 1))
    return compressor.compress(x, compressor.init(x), step).to_dense()


def _distance(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    pairs = [(got[name].detach().cpu(), wanted[name].detach()) for name in wanted]
    apart = sum(float((one - other).square().sum()) for one, other in pairs)
    return float((apart / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5)


def _row(check: str, distance: float) -> Row:
    return {
        "table": "agreement",
        "check": check,
        "distance": distance,
        "agrees": distance <= _CLOSE,
    }
