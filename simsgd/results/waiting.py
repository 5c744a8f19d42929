"""Whom the workers of a run wait for, by its algorithm.

Letters: W workers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..registry import build, settings_of
from ..settings import names_own_file
from .clocks import Bools, Waiting
from .run_tables import RunTables

if TYPE_CHECKING:
    from ..methods.algorithms import Algorithm

OfStep = Callable[[int], Bools | None]


def waiting_of(
    run: RunTables, epochs: Sequence[int], overlaps: bool, differs: bool
) -> Waiting | None:
    """Return whom the workers of a run wait for; None where all wait for all in each step.

    `epochs` are those of its steps. Nothing is late unless it `overlaps` with later steps, and
    nobody waits for a slower worker unless the time of one `differs` from another's.
    """
    used = run.used
    streams = overlaps and str(used.get("algorithm")).startswith("streaming")
    late = _whole(used.get("delay")) if streams else 0
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
        links=_links(run, algorithm, seed),
        participants=_participants(algorithm, seed, workers, epochs),
        delays=None if delays is None else delays.numpy(),
        late=late,
    )


def _algorithm(run: RunTables) -> "Algorithm | None":
    """Return a run's algorithm; None for a user's own, whose code is not run for a price."""
    spec = str(run.config.get("algorithm", "allreduce"))
    if names_own_file(spec.partition(":")[0]) or spec.startswith("object:"):
        return None
    import torch

    from ..methods.algorithms.fedavg import FedAvg

    plain: Algorithm
    (plain,) = build("algorithm", spec)
    used = run.used
    own = {f.name: used[f.name] for f in settings_of(type(plain)) if f.name in used}
    algorithm = dataclasses.replace(plain, **own)
    held = run.partition.groupby("worker")["samples"].sum()
    if not isinstance(algorithm, FedAvg) or algorithm.local_epochs is None or held.empty:
        return algorithm
    batch = _whole(used.get("batch_size")) * (_whole(used.get("accumulate")) or 1)
    return algorithm.for_clients(run.num_workers, torch.tensor(held.tolist()), batch)


def _links(run: RunTables, algorithm: "Algorithm", seed: int) -> OfStep:
    """Return of a step who waits for whom, [W, W]; None where all do for all."""
    from ..communication.topology import topology
    from ..methods.algorithms.gossip import Gossip
    from ..methods.algorithms.islands import Islands, islands
    from ..methods.algorithms.noloco import NoLoCo

    workers = run.num_workers
    if isinstance(algorithm, Gossip):
        graph = topology(algorithm.topology, workers)
        return lambda step: graph.at(step).links.numpy()
    if isinstance(algorithm, Islands | NoLoCo):
        size = algorithm.island_size if isinstance(algorithm, Islands) else 2
        every = algorithm.local_steps
        return lambda step: islands(seed, step // every, workers, size).links.numpy()
    return lambda step: None


def _participants(algorithm: "Algorithm", seed: int, workers: int, epochs: Sequence[int]) -> OfStep:
    """Return of a step which workers train, [W]; None where all do."""

    def drawn(step: int) -> Bools | None:
        own = algorithm.participants(seed, workers, step, epochs[step])
        return None if own is None else own.numpy()

    return drawn


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
