"""Counts the kernels and the waits of a step by compressor, memory and algorithm.

A GPU takes 5 to 10 us to launch a kernel, however small: a step of many small ones is slow there,
and so is one that waits for the device. Counts do not depend on what else a machine does.

Letters: W workers, b samples each.
"""

from collections.abc import Sequence
from typing import Any

from ..results.text_table import TextTable
from ..settings import PLANS, unknown
from ..training.environment import environment
from .cases import QUICK, RESNET, Case, selected, task_of
from .compressors import SPECS
from .floors import PLAIN, floors
from .kernel_count import KernelCount, count_kernels
from .step import simulator, step_of
from .timing import in_time

_WORKERS = (16,)
_STEPS_BEFORE = 2  # steps that make what is kept, before the one that is counted
_COMPRESSORS = tuple(spec for spec in SPECS if spec != "variance")  # which needs samples apart
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "--prune 0.999": {"prune": 0.999, "warmup": False},
    **{spec: {"compressor": spec} for spec in _COMPRESSORS if spec != "none"},
    "topk:0.001, residual": {"compressor": "topk:0.001", "memory": "residual"},
    "topk:0.001, ef21": {"compressor": "topk:0.001", "memory": "ef21"},
    "sign, vote": {"compressor": "sign:scale=none", "aggregate": "vote"},
    "dpsgd": {"algorithm": "dpsgd"},
    "choco, topk:0.01": {"algorithm": "choco", "compressor": "topk:0.01"},
    "local": {"algorithm": "local", "local_steps": 1},
}


def measure(
    quick: bool = False, model: Sequence[str] = (), workers: Sequence[int] = (), plan: str = "auto"
) -> dict[str, Any]:
    """Return {"machine": ..., "rows": [...]}, one row a model, W and method.

    `model` and `workers` W leave out all others; `plan` is that of the step, "gpu" for what a GPU
    would get. `kernels` are a step's, `engine` those of its gradients, which other engines have
    others of, and `outside` all else; `calls` are the kernels by name. Raises `SettingError` for
    an unknown plan.
    """
    if plan not in PLANS:
        raise unknown("plan", plan, PLANS)
    some = workers or ((2,) if quick else _WORKERS)
    cases, notes = selected(QUICK[1:] if quick else (RESNET,), some, model)
    rows = [row for case in in_time(cases, notes) for row in _rows(case, plan, notes)]
    return {"machine": environment("cpu"), "rows": rows} | ({"notes": notes} if notes else {})


def tables(measured: dict[str, Any]) -> list[TextTable]:
    """Return the rows in words, a table for each model and W."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in measured["rows"]:
        title = f"{row['model']}, W = {row['workers']}, b = {row['batch']}, plan {row['plan']}"
        cases.setdefault(title, []).append(row)
    return [_table(title, rows) for title, rows in cases.items()]


def _rows(case: Case, plan: str, notes: list[str]) -> list[dict[str, Any]]:
    known = {"model": case.name, "workers": case.workers, "batch": case.batch, "plan": plan}
    plain = count_kernels(floors(task_of(case, "cpu"), step=True)[PLAIN])
    rows = [known | _row("plain step", plain, plain.kernels)]
    for name in in_time(METHODS, notes):
        counted, of_engine = counted_step(case, {**METHODS[name], "plan": plan})
        rows.append(known | _row(name, counted, of_engine))
    return rows


def counted_step(case: Case, settings: dict[str, Any]) -> tuple[KernelCount, int]:
    """Return what the third step with these settings calls, and the kernels of its gradients."""
    task = task_of(case, "cpu")
    simulated = simulator(task, **settings)
    step = step_of(task, simulated)
    for _ in range(_STEPS_BEFORE):
        step()
    parts = simulated.components
    own = parts.parameters.read(), simulated.buffers, task.x, task.y, parts.key.keys()
    gradients = count_kernels(lambda: parts.engine(*own))
    return count_kernels(step), gradients.kernels


def _row(name: str, counted: KernelCount, of_engine: int) -> dict[str, Any]:
    calls = dict(counted.calls.most_common())
    numbers = {
        "kernels": counted.kernels,
        "engine": of_engine,
        "outside": counted.kernels - of_engine,
        "waits": counted.waits,
    }
    return {"method": name, **numbers, "calls": calls}


def _table(title: str, rows: Sequence[dict[str, Any]]) -> TextTable:
    head, cells = ["method", "kernels", "of gradients", "all else", "waits"], []
    for row in rows:
        numbers = row["kernels"], row["engine"], row["outside"], row["waits"]
        cells.append([row["method"], *(f"{number:,}" for number in numbers)])
    return TextTable(head, cells, title=title)
