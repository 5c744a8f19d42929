"""Times the engine that auto chooses beside all others, on networks as people write them.

Letters: W workers, b samples each.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..gradients.thread_count import thread_count
from ..results.text_table import TextTable
from ..settings import MOST_THREADS, require, unknown
from ..training.devices import device_of
from ..training.environment import environment
from .cases import Task, require_counts
from .engines import EngineCall, engines_that_take
from .public_networks import NETWORKS, network_task
from .tables import Measured, Row, noted
from .timing import in_time, milliseconds, taking_turns

_TIMED = ("onepass", "vmap", "loop", "threads")
_NUMBERS = (4, 16)  # workers
_BATCHES = (4, 32)
_ROUNDS, _ENOUGH = 9, 6.0  # rounds at most, and seconds after which they are enough
_QUICK = ("mlp", "gpt")


@dataclass(frozen=True)
class _Case:
    threads: int
    model: str
    workers: int  # W
    batch: int  # b

    def __str__(self) -> str:
        return f"{self.model} with W = {self.workers}, b = {self.batch}, {_in_words(self.threads)}"


def measure(
    quick: bool = False,
    device: str = "cpu",
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    batch: Sequence[int] = (),
    threads: Sequence[int] = (),
    own_models: bool = False,
) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a network, W, b, threads and engine.

    `model` are names of networks; they, `workers` W and `batch` b leave out all others. On a CPU
    each is timed on so many `threads`, one after the other, by default those that torch has. With
    `own_models` workers have a model each, as in gossip and local methods. `chosen` says whether
    auto takes the engine, and `loss` is how much longer it took than the fastest. The reasons of
    engines that decline are "notes". Raises `SettingError` for an unknown network and for a number
    below 1.
    """
    device = device_of(device)
    for name in model:
        if name not in NETWORKS:
            raise unknown("model", name, NETWORKS)
    require_counts(workers=workers, batch=batch, threads=threads)
    for number in threads:
        require(number <= MOST_THREADS, "threads", number, f"must be at most {MOST_THREADS}")
        rule = "has no effect on a GPU"
        require(device == "cpu", "threads", number, rule, "leave it out")
    notes: list[str] = []
    cases = itertools.starmap(
        _Case,
        itertools.product(
            threads or (torch.get_num_threads(),),
            model or (_QUICK if quick else NETWORKS),
            workers or ((2,) if quick else _NUMBERS),
            batch or ((2,) if quick else _BATCHES),
        ),
    )
    rounds = 3 if quick else _ROUNDS
    rows = [
        row
        for case in in_time(cases, notes)
        for row in _rows(case, device, own_models, rounds, notes)
    ]
    return noted({"machine": environment(device), "rows": rows}, [*dict.fromkeys(notes)])


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words: a table for each number of threads, a line for each network."""
    kinds: dict[tuple[int, bool], list[Row]] = {}
    for row in measured["rows"]:
        kinds.setdefault((row["threads"], row["own_models"]), []).append(row)
    return [_table(threads, own_models, rows) for (threads, own_models), rows in kinds.items()]


def _table(threads: int, own_models: bool, rows: Sequence[Row]) -> TextTable:
    head, cells = ["network", "kind", "W", "b", *_TIMED, "auto", "loses"], []
    cases: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["workers"], row["batch"]), []).append(row)
    for (name, workers, batch), own in cases.items():
        times = {row["engine"]: f"{row['ms']:,.1f}" for row in own}
        (chosen,) = (row for row in own if row["chosen"])
        cells.append(
            [
                str(name),
                NETWORKS[str(name)].kind,
                str(workers),
                str(batch),
                *(times.get(engine, "") for engine in _TIMED),
                chosen["engine"],
                f"{chosen['loss']:.0%}",
            ]
        )
    whose = ", a model each" if own_models else ""
    title = f"ms of all workers' gradients, by engine, on {_in_words(threads)}{whose}"
    return TextTable(head, cells, names=2, title=title)


def _in_words(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _rows(case: _Case, device: str, own_models: bool, rounds: int, notes: list[str]) -> list[Row]:
    task = network_task(case.model, case.workers, case.batch, device)
    with thread_count(case.threads):
        engines = _engines(task, case.model, device, own_models, notes)
        seconds = taking_turns(engines, device, rounds, _ENOUGH)
        choice = EngineCall.of("auto", task, own_models).choose()
    fastest = min(statistics.median(spent) for spent in seconds.values())
    return [
        {
            "threads": case.threads,
            "own_models": own_models,
            "model": case.model,
            "workers": case.workers,
            "batch": case.batch,
            "engine": engine,
            "chosen": engine == choice,
            "loss": statistics.median(spent) / fastest - 1,
            **milliseconds(spent),
            "rounds": len(spent),
        }
        for engine, spent in seconds.items()
    ]


def _engines(
    task: Task, name: str, device: str, own_models: bool, notes: list[str]
) -> dict[str, EngineCall]:
    on_cpu = device.startswith("cpu")
    timed = [engine for engine in _TIMED if on_cpu or engine != "threads"]
    return engines_that_take(task, timed, name, notes, own_models)
