"""Times a training step by how many threads its operations use, on idle cores and on busy ones.

One thread, all threads and what `--threads auto` takes have turns in one process, first alone and
then beside processes that keep every core busy.

Letters: W workers, b samples each.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..config import Config
from ..gradients.thread_count import thread_count
from ..results.text_table import TextTable
from ..training.environment import environment
from ..training.thread_choice import ThreadChoice, thread_choice
from .cases import LENET, MLP, QUICK, RESNET, Case, selected, task_of
from .step import pruned, step_of
from .tables import tables_by_case
from .timing import Work, rows_of, taking_turns

FLOOR, ALL, AUTO = "1", "all", "auto"
IDLE, BUSY = "nothing else at work", "every core busy"
_CASES = (MLP, LENET, RESNET)
_WORKERS = (16,)
_ROUNDS, _ENOUGH = 21, 20.0  # rounds at most, and seconds after which they are enough


def measure(
    quick: bool = False,
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    batch: Sequence[int] = (),
) -> dict[str, Any]:
    """Return {"machine": ..., "rows": [...]}, one row a model, W, b, company and choice of threads.

    `model`, `workers` W and `batch` b leave out all others. A row has the median, least and most of
    its milliseconds, and the median over rounds of its ratio to one thread in the same company.
    """
    some = workers or ((2,) if quick else _WORKERS)
    cases, notes = selected(QUICK if quick else _CASES, some, model, batch)
    rounds, rows = 3 if quick else _ROUNDS, []
    for case in cases:
        works = _works(case)
        known = {"model": case.name, "workers": case.workers, "batch": case.batch}
        idle = taking_turns(works, "cpu", rounds, _ENOUGH)
        rows += rows_of(idle, [FLOOR], known | {"beside": IDLE}, "threads")
        with busy_cores():
            busy = taking_turns(works, "cpu", rounds, _ENOUGH)
        rows += rows_of(busy, [FLOOR], known | {"beside": BUSY}, "threads")
    return {"machine": environment("cpu"), "rows": rows} | ({"notes": notes} if notes else {})


def tables(measured: dict[str, Any]) -> list[TextTable]:
    """Return the rows in words, a table for each model, W, b and company."""
    return [
        table
        for beside in (IDLE, BUSY)
        for table in tables_by_case(
            [row for row in measured["rows"] if row["beside"] == beside],
            "threads",
            "1 thread",
            f", {beside}",
        )
    ]


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a process of its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(cores or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _works(case: Case) -> dict[str, Work]:
    """Return a step for each choice of threads, each of a model of its own."""
    available = torch.get_num_threads()
    return {
        FLOOR: _work(case, ThreadChoice(1, 1, 1)),
        ALL: _work(case, ThreadChoice(available, available, available)),
        AUTO: _work(case, None),
    }


def _work(case: Case, choice: ThreadChoice | None) -> Work:
    """Return a step with 99.9 % pruned on some threads; None: as many as auto takes."""
    task = task_of(case, "cpu")
    with thread_count(None if choice is None else choice.available):
        simulator = pruned(task)
        simulator.engine_for(*task.whole)
        taken = choice or thread_choice(simulator, Config(device="cpu"), *task.whole)
    simulator.components.engine.operation_threads = taken.gradients
    step = step_of(task, simulator)

    def work() -> None:
        with thread_count(taken.others):
            step()

    return work
