"""Times a training step of each algorithm beside one of `allreduce`.

All train the same model on the same batch by momentum SGD, and take turns in one process. Local
methods average at every step here, their most expensive setting; with H local steps they average
at every H-th.

Letters: W workers, b samples each.
"""

from collections.abc import Sequence

from ..methods.compressors import composed
from ..registry import names
from ..results.text_table import TextTable
from ..settings import SettingError
from ..training.devices import device_of
from ..training.environment import environment
from .cases import LENET, MLP, QUICK, RESNET, Case, selected, task_of
from .step import simulator, step_of
from .tables import Measured, noted, tables_by_case
from .timing import Work, in_time, rows_of, taking_turns

FLOOR = "allreduce"
_CASES = (MLP, LENET, RESNET)
_LOCAL = ("local", "fedavg", "diloco")  # local methods
_WORKERS = (16,)
_ROUNDS, _ENOUGH = 21, 60.0  # rounds at most, and seconds after which they are enough


def measure(
    quick: bool = False,
    device: str = "cpu",
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    compressor: str = "none",
) -> Measured:
    """Return {"machine": ..., "compressor": ..., "rows": [...]}, one row a model, W and algorithm.

    `model` and `workers` W leave out all others; `compressor` compresses the messages. A row has
    the median, least and most of its milliseconds, and the median over rounds of its ratio to
    `allreduce`. "notes" names models that are not in this installation, and algorithms that W
    workers cannot follow.

    Raises `SettingError` for whatever does not exist.
    """
    device = device_of(device)
    composed(compressor)  # a wrong one is no algorithm's fault
    some = workers or ((4,) if quick else _WORKERS)
    cases, notes = selected(QUICK if quick else _CASES, some, model)
    rows = []
    for case in in_time(cases, notes):
        works = _works(case, device, compressor, notes)
        seconds = taking_turns(works, device, 3 if quick else _ROUNDS, _ENOUGH)
        known = {"model": case.name, "workers": case.workers, "batch": case.batch}
        rows += rows_of(seconds, [FLOOR], known, "algorithm")
    place = environment(device)
    return noted({"machine": place, "compressor": compressor, "rows": rows}, notes)


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, a table for each model, W and b."""
    compressor = measured["compressor"]
    extra = "" if compressor == "none" else f", compressor {compressor}"
    return tables_by_case(measured["rows"], "algorithm", FLOOR, extra)


def _works(case: Case, device: str, compressor: str, notes: list[str]) -> dict[str, Work]:
    """Return a step of each algorithm; why one is not there goes to `notes`."""
    works = {}
    for name in (FLOOR, *(other for other in names("algorithm") if other != FLOOR)):
        task = task_of(case, device)  # each has a model of its own
        settings = {"local_steps": 1} if name in _LOCAL else {}
        try:
            simulated = simulator(task, algorithm=name, compressor=compressor, **settings)
        except SettingError as declined:
            note = f"{name} is left out with {case.workers} workers: {declined}"
            notes.extend([note] if note not in notes else [])
            continue
        works[name] = step_of(task, simulated)
    return works
