"""Times the engine that auto chooses beside all others, on networks as people write them.

Letters: W workers, b samples each.
"""

import statistics
from collections.abc import Sequence

from ..results.text_table import columns
from ..settings import require, unknown
from ..training.devices import device_of
from ..training.environment import environment
from .cases import Task
from .engines import EngineCall, engines_that_take
from .public_networks import NETWORKS, network_task
from .tables import Measured, Row, noted
from .timing import milliseconds, taking_turns

_TIMED = ("onepass", "vmap", "loop", "threads")
_NUMBERS = (4, 16)  # workers
_BATCHES = (4, 32)
_ROUNDS, _ENOUGH = 9, 6.0  # rounds at most, and seconds after which they are enough
_QUICK = ("mlp", "gpt")


def measure(
    quick: bool = False,
    device: str = "cpu",
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    batch: Sequence[int] = (),
) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a network, W, b and engine.

    `model` are names of networks; they, `workers` W and `batch` b leave out all others. `chosen`
    says whether auto takes the engine, and `loss` is how much longer it took than the fastest. The
    reasons of engines that decline are "notes". Raises `SettingError` for an unknown network and
    for a number below 1.
    """
    device = device_of(device)
    for name in model:
        if name not in NETWORKS:
            raise unknown("model", name, NETWORKS)
    require(all(w >= 1 for w in workers), "workers", list(workers), "must be at least 1")
    require(all(b >= 1 for b in batch), "batch", list(batch), "must be at least 1")
    notes: list[str] = []
    rows = [
        row
        for name in model or (_QUICK if quick else NETWORKS)
        for w in workers or ((2,) if quick else _NUMBERS)
        for b in batch or ((2,) if quick else _BATCHES)
        for row in _rows(name, w, b, device, 3 if quick else _ROUNDS, notes)
    ]
    return noted({"machine": environment(device), "rows": rows}, [*dict.fromkeys(notes)])


def tables(measured: Measured) -> list[str]:
    """Return the rows as text: a line for each network, W and b."""
    cells = [["network", "W", "b", *_TIMED, "auto", "loses"]]
    cases: dict[tuple[object, ...], list[Row]] = {}
    for row in measured["rows"]:
        cases.setdefault((row["model"], row["workers"], row["batch"]), []).append(row)
    for (name, workers, batch), own in cases.items():
        times = {row["engine"]: f"{row['ms']:,.1f}" for row in own}
        (chosen,) = (row for row in own if row["chosen"])
        cells.append(
            [
                f"{name} ({NETWORKS[str(name)].kind})",
                str(workers),
                str(batch),
                *(times.get(engine, "") for engine in _TIMED),
                chosen["engine"],
                f"{chosen['loss']:.0%}",
            ]
        )
    return [f"ms of all workers' gradients, by engine\n{columns(cells)}"]


def _rows(
    name: str, workers: int, batch: int, device: str, rounds: int, notes: list[str]
) -> list[Row]:
    task = network_task(name, workers, batch, device)
    seconds = taking_turns(_engines(task, name, device, notes), device, rounds, _ENOUGH)
    fastest = min(statistics.median(spent) for spent in seconds.values())
    choice = EngineCall.of("auto", task).choose()
    return [
        {
            "model": name,
            "workers": workers,
            "batch": batch,
            "engine": engine,
            "chosen": engine == choice,
            "loss": statistics.median(spent) / fastest - 1,
            **milliseconds(spent),
            "rounds": len(spent),
        }
        for engine, spent in seconds.items()
    ]


def _engines(task: Task, name: str, device: str, notes: list[str]) -> dict[str, EngineCall]:
    on_cpu = device.startswith("cpu")
    timed = [engine for engine in _TIMED if on_cpu or engine != "threads"]
    return engines_that_take(task, timed, name, notes)
