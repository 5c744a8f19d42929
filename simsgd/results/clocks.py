"""When the workers of a run are done with each step, where some wait for others.

Letters: W workers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compute_times import Floats

Bools = NDArray[np.bool_]


def _everyone(_: int) -> Bools | None:
    return None


@dataclass(frozen=True)
class Waiting:
    """Whom each worker waits for.

    `links` returns of a step that sends whether row waits for column, [W, W], and `participants`
    of any step who trains, [W]; None: all.
    """

    links: Callable[[int], Bools | None] = _everyone
    participants: Callable[[int], Bools | None] = _everyone
    delays: NDArray[np.int64] | None = None  # steps that a worker may be ahead of all others, [W]
    late: int = 0  # steps after which what was sent is needed


def fronts(
    compute: Floats, compression: Floats, communication: Floats, sends: Bools, waiting: Waiting
) -> Floats:
    """Return when the last worker is done with each step, [steps].

    `compute` [steps, W] are seconds, and so are `compression` and `communication` [steps]; `sends`
    [steps] are the steps that exchange something. In each a worker computes and compresses, then:

    - exchanges with all, and goes on when the last of them has its messages;
    - with its neighbors, and waits for these alone;
    - with a server that waits for nobody: it goes on at once, unless it would be more than its
      delay ahead of the last worker (Ho et al., "More Effective Distributed ML via a Stale
      Synchronous Parallel Parameter Server", NIPS 2013);
    - or sends what is needed `late` steps later, over one link for all, and goes on meanwhile.

    In a step that sends nothing nobody waits. Who does not participate computes nothing.
    """
    clock = _Clock(compute.shape[1], waiting)
    found = np.empty(len(compute))
    for step, own in enumerate(compute):
        took = own + compression[step]
        drawn = waiting.participants(step)
        clock.work(step, took if drawn is None else took * drawn)
        if sends[step]:
            clock.exchange(step, communication[step])
        found[step] = clock.close()
    return found


class _Clock:
    """The time of each worker, which goes on from step to step."""

    def __init__(self, workers: int, waiting: Waiting) -> None:
        self.now: Any = np.zeros(workers)  # of each worker, [W]
        self.waiting = waiting
        self.done = [0.0]  # when all were done with so many steps
        self.arrivals: dict[int, float] = {}  # of what was sent in a step
        self.link = 0.0  # when it is free

    def work(self, step: int, seconds: Floats) -> None:
        delays = self.waiting.delays
        if delays is not None:
            needed = np.maximum(step - delays, 0)  # steps that all have to be done with
            self.now = np.maximum(self.now, [self.done[steps] for steps in needed])
        self.now = self.now + seconds
        arrival = self.arrivals.pop(step - self.waiting.late, None)
        if arrival is not None:
            self.now = np.maximum(self.now, arrival)

    def exchange(self, step: int, seconds: float) -> None:
        if self.waiting.delays is not None:
            self.now = self.now + seconds
        elif self.waiting.late:
            self.link = max(self.link, float(self.now.max())) + seconds
            self.arrivals[step] = self.link
        else:
            links = self.waiting.links(step)
            self.now = self._met(links) + seconds

    def _met(self, links: Bools | None) -> Floats:
        """Return when each worker and all that it waits for have come so far, [W]."""
        if links is None or len(self.now) == 1:
            return np.full_like(self.now, self.now.max())
        reached = np.where(links | np.eye(len(links), dtype=bool), self.now, -np.inf)
        met: Floats = reached.max(1)
        return met

    def close(self) -> float:
        self.done.append(float(self.now.max()))
        return self.done[-1]
