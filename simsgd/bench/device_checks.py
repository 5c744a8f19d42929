"""Checks that a device computes what the CPU does, and that its steps do not wait for it.

Letters: L workers, b samples each, n elements of one segment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..gradients import Gradients
from ..gradients.contract import EngineConfig
from ..keyed_random import RandomKey
from ..methods.compressors import StepInfo, composed
from ..registry import find
from .cases import QUICK, Case, Task, selected, task_of
from .kernels import METHODS
from .step import simulator, step_of
from .tables import Row

_ENGINES = (("onepass", "cpu"), ("onepass", "gpu"), ("vmap", "auto"), ("loop", "auto"))
_CASES = (*QUICK, Case("transformer_lm", "emb=16,layers=1,heads=2", (8,), 2, vocabulary=20))
_WORKERS, _CLOSE = 3, 1e-10  # relative distance in float64
_SHAPE = (24, 50)  # of the segment that is compressed


def agreement(device: str, specs: Sequence[str]) -> list[Row]:
    """Return how far gradients and messages on a device are from those on the CPU, in float64."""
    cases, _ = selected(_CASES, (_WORKERS,))
    rows = []
    for case in cases:
        for per_worker in (False, True):
            wanted = _gradients(case, "cpu", "loop", "auto", per_worker)
            for engine, plan in _ENGINES:
                got = _gradients(case, device, engine, plan, per_worker)
                whose = "a model each" if per_worker else "one model"
                name = f"{engine}, plan {plan}" if engine == "onepass" else engine
                check = f"gradients by {name}: {case.name}, {whose}"
                rows.append(_row(check, _distance(got.values, wanted.values)))
    for spec in specs:
        here, there = (_message(spec, place) for place in ("cpu", device))
        rows.append(_row(f"message of {spec}", _distance({"": there}, {"": here})))
    return rows


def waits(device: str) -> list[Row]:
    """Return which methods' steps wait for a GPU, as torch itself finds."""
    rows = []
    case = selected(QUICK[1:], (_WORKERS,))[0]
    for name, settings in METHODS.items() if case else ():
        task = task_of(case[0], device)
        step = step_of(task, simulator(task, plan="gpu", **settings))
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
    workers = len(task.x)
    params: dict[str, Tensor] = dict(task.model.named_parameters())
    if per_worker:
        scale = 1 + torch.arange(workers, dtype=torch.float64) / 10
        params = {
            name: p.detach() * scale.to(p).view(-1, *[1] * p.dim()) for name, p in params.items()
        }
    buffers = {n: torch.stack([b] * workers) for n, b in task.model.named_buffers()}
    keys = RandomKey(0, torch.arange(workers, device=device)).keys()
    config = EngineConfig(per_worker=per_worker, plan=plan)
    made = find("engine", engine)(task.model, task.criterion, config)
    got: Gradients = made(params, buffers, task.x, task.y, keys)
    return got


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
