"""Times a training step over the number of workers, and over the number of parameters.

Letters: W workers, b samples each, B = W * b, P all parameters.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..results.text_table import TextTable
from ..settings import require
from ..training.devices import device_of
from ..training.environment import environment
from .cases import MLP, QUICK, RESNET, Case, Task, task_of
from .floors import PLAIN, floors
from .step import pruned, step_of
from .tables import Measured, Row
from .timing import Work, milliseconds, ratio, taking_turns

OVER = ("workers", "parameters")
_BATCH = 512  # B, when W varies
_WORKERS = (1, 4, 16, 64, 256)
_HIDDEN = (16, 64, 256, 1024, 4096)  # units of the hidden layer, when P varies
_W = 16  # when P varies
_ROUNDS, _ENOUGH = 9, 120.0


def measure(quick: bool = False, device: str = "cpu", workers: Sequence[int] = ()) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a W at B = 512, and one a P at W = 16.

    Timed is the step with 99.9 % pruned and memory dgc. A row has the median, least and most of
    its milliseconds, the median `plain_ms` of a plain momentum SGD step of the same global batch,
    and `ratio`, to that. `workers` are other W, each a divisor of 512.
    """
    device, rounds = device_of(device), 3 if quick else _ROUNDS
    batch = 16 if quick else _BATCH
    some = workers or ((1, 4) if quick else _WORKERS)
    few = _divided(QUICK[1] if quick else RESNET, some, batch)
    wide = [replace(MLP, config=f"hidden={n}", workers=_W) for n in _HIDDEN]
    wide = [replace(case, workers=2, batch=4) for case in wide[:2]] if quick else wide
    rows = _rows("workers", few, device, rounds, shared=True)
    rows += _rows("parameters", wide, device, rounds, shared=False)
    return {"machine": environment(device), "rows": rows}


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, a table over workers and one over parameters."""
    found = []
    for over in OVER:
        rows = [row for row in measured["rows"] if row["over"] == over]
        head = ["model", "W", "b", "P", "ms", "least", "most", "times plain", "times least"]
        cells = []
        least = min(row["ms"] for row in rows)
        for row in rows:
            numbers = [f"{row[key]:,}" for key in ("workers", "batch", "parameters")]
            times = [f"{row[key]:,.2f}" for key in ("ms", "ms_min", "ms_max", "ratio")]
            cells.append([row["model"], *numbers, *times, f"{row['ms'] / least:.2f}"])
        title = f"over {over}, median of {rows[0]['rounds']} rounds"
        found.append(TextTable(head, cells, title=title))
    return found


def _divided(case: Case, workers: Sequence[int], batch: int) -> list[Case]:
    """Return the case with a global batch of `batch` divided among each number of workers."""
    for w in workers:
        rule = f"must be a divisor of the {batch} samples"
        require(w >= 1 and batch % w == 0, "workers", w, rule)
    return [replace(case, workers=w, batch=batch // w) for w in workers]


def _rows(over: str, cases: Sequence[Case], device: str, rounds: int, shared: bool) -> list[Row]:
    """Return a row for each case; all take turns, `shared` with one plain step for all."""
    tasks = [task_of(case, device) for case in cases]
    plain = {f"plain {i}": floors(task, step=True)[PLAIN] for i, task in enumerate(tasks)}
    steps: dict[str, Work] = {str(i): step_of(task, pruned(task)) for i, task in enumerate(tasks)}
    if shared:
        plain = {"plain 0": plain["plain 0"]}
    seconds = taking_turns(plain | steps, device, rounds, _ENOUGH)
    floor = [seconds["plain 0" if shared else f"plain {i}"] for i in range(len(cases))]
    return [
        {
            "over": over,
            "model": case.name,
            "workers": case.workers,
            "batch": case.batch,
            "parameters": _size(task),
            "plain_ms": milliseconds(floor[i])["ms"],
            "ratio": ratio(seconds[str(i)], floor[i]),
            **milliseconds(seconds[str(i)]),
            "rounds": len(seconds[str(i)]),
        }
        for i, (case, task) in enumerate(zip(cases, tasks, strict=True))
    ]


def _size(task: Task) -> int:
    return sum(p.numel() for p in task.model.parameters())
