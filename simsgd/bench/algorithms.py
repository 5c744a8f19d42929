"""How long a training step of each algorithm takes, beside one of `allreduce`.

All train the same model on the same batch by momentum SGD, and take turns in one process. Local
methods meet at every step here, which is the dearest they can be; with H local steps they meet at
every H-th.

Letters: W workers, b samples each.
"""

from collections.abc import Sequence
from typing import Any

from ..methods.compressors import composed
from ..registry import names
from ..settings import SettingError
from ..text_table import columns
from ..training.environment import environment
from ..training.experiment import device_of
from .cases import LENET, MLP, QUICK, RESNET, Case, selected, task_of
from .step import simulator, step_of
from .timing import Work, rows_of, taking_turns

FLOOR = "allreduce"
_CASES = (MLP, LENET, RESNET)
_MEETING = ("local", "fedavg", "diloco")  # local methods
_WORKERS = (16,)
_ROUNDS, _ENOUGH = 21, 60.0  # rounds at most, and seconds after which they are enough


def measure(
    quick: bool = False,
    device: str = "cpu",
    models: Sequence[str] = (),
    workers: Sequence[int] = (),
    compressor: str = "none",
) -> dict[str, Any]:
    """Return {"machine": ..., "compressor": ..., "rows": [...]}, one row a model, W and algorithm.

    `models` and `workers` W leave out all others; `compressor` is what each says its messages
    with. A row has the median, least and most of its milliseconds, and the median over rounds of
    its ratio to `allreduce`. Models that are not in this installation, and algorithms that W
    workers cannot follow, are told in "notes".

    Raises `SettingError` for whatever does not exist.
    """
    device = device_of(device)
    composed(compressor)  # a wrong one is no algorithm's fault
    some = workers or ((4,) if quick else _WORKERS)
    cases, notes = selected(QUICK if quick else _CASES, some, models)
    rows = []
    for case in cases:
        works = _works(case, device, compressor, notes)
        seconds = taking_turns(works, device, 3 if quick else _ROUNDS, _ENOUGH)
        known = {"model": case.name, "workers": case.workers, "batch": case.batch}
        rows += rows_of(seconds, [FLOOR], known, "algorithm")
    measured = {"machine": environment(device), "compressor": compressor, "rows": rows}
    return measured | ({"notes": notes} if notes else {})


def told(measured: dict[str, Any]) -> str:
    """Return the rows as a text."""
    machine = measured["machine"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    parts = [f"{machine['machine']}, {threads}, torch {machine['torch']}"]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in measured["rows"]:
        case = row["model"], row["workers"], row["batch"], row["rounds"]
        cases.setdefault(case, []).append(row)
    how = measured["compressor"]
    for (model, workers, batch, rounds), rows in cases.items():
        said = "" if how == "none" else f", compressor {how}"
        head = f"{model}, W = {workers}, b = {batch}{said}, median of {rounds} rounds"
        parts.append(f"{head}\n{_table(rows)}")
    return "\n\n".join([*parts, *measured.get("notes", [])])


def _works(case: Case, device: str, compressor: str, notes: list[str]) -> dict[str, Work]:
    """Return a step of each algorithm; why one is not there goes to `notes`."""
    works = {}
    for name in (FLOOR, *(other for other in names("algorithm") if other != FLOOR)):
        task = task_of(case, device)  # each has a model of its own
        meeting = {"local_steps": 1} if name in _MEETING else {}
        try:
            simulated = simulator(task, algorithm=name, compressor=compressor, **meeting)
        except SettingError as declined:
            note = f"{name} is left out with {case.workers} workers: {declined}"
            notes.extend([note] if note not in notes else [])
            continue
        works[name] = step_of(task, simulated)
    return works


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [["algorithm", "ms", "least", "most", f"times {FLOOR}"]]
    for row in rows:
        times = [f"{row[key]:,.2f}" for key in ("ms", "ms_min", "ms_max", "ratio")]
        cells.append([row["algorithm"], *times])
    return columns(cells)
