"""Times a whole training step beside other ways to do the same.

Set against one plain momentum SGD step of the same global batch, whole and in W parts, are the
step with deep gradient compression and the step that sends everything; a loop over workers with
Python compression tensor by tensor, as older codes have it; and W processes of torch's
DistributedDataParallel over gloo, which send everything, too. The gradients alone, and a copy of as
much memory as the step has to read and write, show where its time goes. All but the processes take
turns in one process; those run after the others, as they would disturb them.

Letters: W workers, b samples each, B = W * b.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..communication.transport import Distributed
from ..results.text_table import TextTable
from ..settings import kept
from ..simulator.simulator import Simulator
from ..training.devices import device_of
from ..training.environment import environment
from ..verify.launch import Put, launch
from ..verify.real_worker import with_own_buffers
from .baseline_loop import OlderStep
from .cases import CASES, QUICK, Case, Task, selected, task_of
from .engines import EngineCall
from .floors import floors
from .tables import Measured, noted, tables_by_case
from .timing import Work, in_time, rows_of, taking_turns

PRUNED, WHOLE = "simsgd --prune 0.999", "simsgd"
GRADIENTS = "gradients of all workers"
GRAPHED = "simsgd --prune 0.999 --cuda-graph auto"
MOVED = "memory that this moves, copied"
OLDER, PROCESSES = "loop, compressed in Python", "W processes, DDP over gloo"
_PRUNE = 0.999
_WORKERS = (16,)
_MOST_PROCESSES = 16
_ROUNDS, _ENOUGH = 21, 20.0  # rounds at most, and seconds after which they are enough


def measure(
    quick: bool = False,
    device: str = "cpu",
    model: Sequence[str] = (),
    workers: Sequence[int] = (),
    batch: Sequence[int] = (),
    processes: bool = True,
) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a model, W, b and kind of step.

    `model`, `workers` W and `batch` b leave out all others; `processes` are those of
    DistributedDataParallel, on the CPU and for up to 16 workers. A row has the median, least and
    most of its milliseconds, and the median over rounds of its ratio to the best plain step.
    """
    device = device_of(device)
    some = workers or ((2,) if quick else _WORKERS)
    cases, notes = selected(QUICK if quick else CASES, some, model, batch)
    rounds, rows = 3 if quick else _ROUNDS, []
    for case in in_time(cases, notes):
        lowest = floors(task_of(case, device), step=True)
        seconds = taking_turns(lowest | _works(case, device), device, rounds, _ENOUGH)
        if processes and device == "cpu" and case.workers <= _MOST_PROCESSES:
            done = len(seconds[PRUNED])
            [seconds[PROCESSES]] = launch(_as_process, case.workers, case, done)
        known = {"model": case.name, "workers": case.workers, "batch": case.batch}
        rows += rows_of(seconds, list(lowest), known, "step")
    return noted({"machine": environment(device), "rows": rows}, notes)


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, a table for each model, W and b."""
    return tables_by_case(measured["rows"], "step", "plain")


def pruned(task: Task, **settings: Any) -> Simulator:
    """Return a simulator of the task with memory dgc and 99.9 % pruned from the first step on."""
    return simulator(task, prune=_PRUNE, warmup=False, **settings)


def simulator(task: Task, **settings: Any) -> Simulator:
    """Return a simulator of the task with momentum SGD."""
    own = {"workers": len(task.x), "lr": 1e-3, "momentum": 0.9, **settings}
    return Simulator(task.model, task.criterion, **own)


def step_of(task: Task, simulated: Simulator) -> Work:
    """Return a step on the task's global batch."""
    x, y = task.whole
    return lambda: simulated.step(x, y, 0)


def _works(case: Case, device: str) -> dict[str, Work]:
    """Return the steps by name, each with a model of its own."""
    one, other, third = (task_of(case, device) for _ in range(3))
    works: dict[str, Work] = {
        PRUNED: step_of(one, pruned(one)),
        WHOLE: step_of(other, simulator(other)),
        GRADIENTS: EngineCall.of("auto", one),
        MOVED: _moved(one),
        OLDER: OlderStep(third, kept(_PRUNE)),
    }
    if device.startswith("cuda"):
        fourth = task_of(case, device)
        works[GRAPHED] = step_of(fourth, pruned(fourth, cuda_graph="auto"))
    return works


def _moved(task: Task) -> Work:
    """Return copies of as much as the gradients and memory dgc of all workers take, [W, P] each.

    Gradients are written and read, momentum and residual read and written: three reads and three
    writes, as copies of three tensors.
    """
    like = next(task.model.parameters())
    size = len(task.x), sum(p.numel() for p in task.model.parameters())
    pairs = [(like.new_zeros(size), like.new_zeros(size)) for _ in range(3)]

    def copy() -> None:
        for into, own in pairs:
            into.copy_(own)

    return copy


def _as_process(put: Put, case: Case, rounds: int) -> None:
    """Train as one worker of a group; the first puts the seconds of each of its steps."""
    task = task_of(case, "cpu")
    own = Distributed(case.workers).rank
    model = with_own_buffers(task.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        task.criterion(model(task.x[own]), task.y[own]).backward()
        optimizer.step()

    seconds = taking_turns({PROCESSES: step}, "cpu", rounds)[PROCESSES]
    if own == 0:
        put(seconds)
