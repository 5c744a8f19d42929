"""Whom the workers of a run wait for, by its algorithm.

Letters: W workers.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..registry import build, settings_of
from .clocks import Bools, Waiting
from .run_tables import RunTables

if TYPE_CHECKING:
    from torch import Tensor

    from ..methods.algorithms import Algorithm


def waiting_of(
    run: RunTables, epochs: Sequence[int], overlaps: bool, differs: bool
) -> Waiting | None:
    """Return whom the workers of a run wait for; None where all wait for all in each step.

    `epochs` are those of its steps. Nothing is late unless it `overlaps` with later steps, and
    nobody waits for a slower worker unless the time of one `differs` from another's.
    """
    used = run.used
    late = _whole(used.get("delay")) if overlaps else 0  # of an algorithm whose messages are late
    if not differs:
        return Waiting(late=late) if late else None
    algorithm = _algorithm(run)
    if algorithm is None:
        return Waiting(late=late)
    import torch

    from ..methods.algorithms import GradientAlgorithm

    seed, workers = _whole(used.get("seed")), run.num_workers
    delays = algorithm.delays(seed, torch.arange(workers))
    if delays is None and isinstance(algorithm, GradientAlgorithm):
        return None
    return Waiting(
        links=lambda step: _bools(algorithm.links(seed, workers, step)),
        participants=lambda step: _bools(algorithm.participants(seed, workers, step, epochs[step])),
        delays=None if delays is None else delays.numpy(),
        late=late,
    )


def _algorithm(run: RunTables) -> "Algorithm | None":
    """Return a run's algorithm; None for a user's own, whose code is not run for a price."""
    spec, used = str(run.config.get("algorithm", "allreduce")), run.used
    if _may_be_code(spec):
        return None
    import torch

    plain: Algorithm
    (plain,) = build("algorithm", spec)
    own = {f.name: used[f.name] for f in settings_of(type(plain)) if f.name in used}
    if any(map(_may_be_code, own.values())):
        return None
    algorithm = dataclasses.replace(plain, **own)
    held = run.partition.groupby("worker")["samples"].sum()
    if held.empty:
        return algorithm
    batch = _whole(used.get("batch_size")) * (_whole(used.get("accumulate")) or 1)
    return algorithm.for_clients(run.num_workers, torch.tensor(held.tolist()), batch)


def _may_be_code(value: object) -> bool:
    """Return whether a setting of a config.json may name a file of code."""
    return isinstance(value, str) and (".py" in value or value.startswith("object:"))


def _bools(tensor: "Tensor | None") -> Bools | None:
    if tensor is None:
        return None
    found: Bools = tensor.numpy()
    return found


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
