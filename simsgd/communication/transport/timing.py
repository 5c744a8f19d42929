"""Measures how long the collectives of real ranks take."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Timed:
    """One collective, as one rank saw it; times by a clock that all ranks of a machine share."""

    collective: str  # as in the ledger
    num_bytes: int  # that this rank put into it; of a broadcast: that reached it
    degree: int  # neighbors to whom that went, else 0
    began: float  # seconds
    ended: float


@dataclass(frozen=True)
class Measured:
    """One collective of all ranks."""

    collective: str
    num_bytes: float  # of one rank's buffer: the mean in a gather, else the most
    degree: int  # of the busiest rank
    seconds: float  # from when all had begun to when all had ended


class Stopwatch:
    """Times what is carried; before it starts, `barrier` waits for all ranks."""

    def __init__(self, barrier: Callable[[], object]) -> None:
        self.barrier = barrier
        self.timed: list[Timed] = []

    @contextmanager
    def time(self, collective: str, num_bytes: int, degree: int) -> Iterator[None]:
        """Time what is done within."""
        self.barrier()
        began = time.monotonic()
        yield
        self.timed.append(Timed(collective, num_bytes, degree, began, time.monotonic()))

    def take(self) -> list[Timed]:
        """Return what was timed since this was last called."""
        timed, self.timed = self.timed, []
        return timed


def of_all_ranks(timed: Sequence[Sequence[Timed]]) -> list[Measured]:
    """Return what all ranks' times of the same collectives, [R][collectives], come to.

    >>> early, late = Timed("gather", 8, 0, 1.0, 4.0), Timed("gather", 4, 0, 2.0, 4.5)
    >>> of_all_ranks([[early], [late]])
    [Measured(collective='gather', num_bytes=6.0, degree=0, seconds=2.5)]
    """
    return [_of_all_ranks(one) for one in zip(*timed, strict=True)]


def _of_all_ranks(timed: Sequence[Timed]) -> Measured:
    sizes = [one.num_bytes for one in timed]
    counted = sum(sizes) / len(sizes) if timed[0].collective == "gather" else max(sizes)
    seconds = max(one.ended for one in timed) - max(one.began for one in timed)
    return Measured(timed[0].collective, counted, max(one.degree for one in timed), seconds)
