"""Chooses how many threads the operations of a run use.

Threads that share an operation wait for each other at its end. That pays where the operation
computes long; where it is brief they wait more than they compute, and on a busy machine for as long
as other processes let none of them work. The choice follows from the work in a call and times
nothing, so that a run made twice is the same run.

Letters: L workers hosted here, n elements of one segment.
"""

import os
from dataclasses import dataclass

import torch

from .. import compiled_loops
from ..config import Config
from ..gradients.model_cost import CallCounter
from ..gradients.trees import Tree
from ..simulator.simulator import Simulator

_CALL = 1 << 24  # multiplications of a layer, for all workers in it, that are worth sharing
_ELEMENTS = 1 << 20  # numbers of the largest segment, of all workers, that are worth sharing


@dataclass(frozen=True)
class ThreadChoice:
    """The threads of a run."""

    available: int  # that it may use
    gradients: int  # of operations in gradients and evaluation
    others: int  # of operations in compression, memory and optimizer

    def line(self) -> str:
        """Return what the log says of it.

        >>> ThreadChoice(2, 2, 1).line()
        'threads: 2 for gradients, 1 for all else'
        >>> ThreadChoice(2, 1, 1).line()
        'threads: 1 of 2, as operations are brief'
        """
        if self.gradients != self.others:
            return f"threads: {self.gradients} for gradients, {self.others} for all else"
        if self.gradients < self.available:
            return f"threads: {self.gradients} of {self.available}, as operations are brief"
        return f"threads: {self.gradients}"


def requested_threads(config: Config) -> int | None:
    """Return the threads that the settings ask for, or None for those that torch has."""
    return config.threads if isinstance(config.threads, int) else None


def thread_choice(simulator: Simulator, config: Config, x: Tree, y: Tree) -> ThreadChoice:
    """Return the threads of a run, of which `x` [B, ...] and `y` [B, ...] are a batch.

    The engine was chosen before. With `--threads N` all operations use N.
    """
    parts, available = simulator.components, torch.get_num_threads()
    if config.threads != "auto" or config.device != "cpu" or available == 1:
        return ThreadChoice(available, available, available)
    with CallCounter() as calls:
        simulator.forward_once(x, y)
    workers = len(parts.workers) * parts.recipe.devices
    together = parts.engine.chunk_size(workers)
    shares_workers = parts.engine.num_threads(workers) > 1
    long = shares_workers or calls.multiplications_a_call * together >= _CALL
    largest = len(parts.workers) * max(segment.n for segment in parts.layout.segments)
    return ThreadChoice(
        available, available if long else 1, available if largest >= _ELEMENTS else 1
    )


def machine_line(choice: ThreadChoice) -> str:
    """Return the line of the log on threads and on the form of inner loops."""
    line = f"{choice.line()}; inner loops: {compiled_loops.form()}"
    waits = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if max(choice.gradients, choice.others) == 1 or waits:
        return line
    return (
        f"{line}; they wait for each other at work, as torch was imported before simsgd: set "
        "OMP_WAIT_POLICY=passive if other processes are busy"
    )
