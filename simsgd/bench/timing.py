"""Times work by turns, round after round in one process, so that noise affects all alike."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

from .tables import Row

Work = Callable[[], object]
Case = TypeVar("Case")

_BRIEF = 0.5  # seconds below which a work is run once before it is timed
_end: ContextVar[float] = ContextVar("_end", default=float("inf"))  # of the budget, on time's clock


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Within it, no case is begun once so many seconds have passed, or an outer budget has."""
    before = _end.set(min(_end.get(), time.perf_counter() + seconds))
    try:
        yield
    finally:
        _end.reset(before)


def seconds_left() -> float:
    """Return what is left of the budget, in seconds; infinite without one."""
    return _end.get() - time.perf_counter()


def in_time(
    cases: Iterable[Case], notes: list[str], named: Callable[[Case], str] = str
) -> Iterator[Case]:
    """Return the cases for which the budget lasts; the others' names go to `notes`."""
    waiting = list(cases)
    while waiting and seconds_left() > 0:
        yield waiting.pop(0)
    if waiting:
        notes.append(f"there was no time for {'; '.join(map(named, waiting))}")


def taking_turns(
    works: Mapping[str, Work], device: str, rounds: int, enough: float = float("inf")
) -> dict[str, list[float]]:
    """Return the seconds of each work in each round, after one that is not counted.

    There are `rounds` of them, or fewer once `enough` seconds, or those of the budget, have passed,
    but at least 3. Brief
    works are run twice at each turn and timed the second time, as they run where nothing else does:
    memory that another work gave back to the system takes as long to get as they do to compute.
    """
    first = {name: _seconds(work, device) for name, work in works.items()}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    began = time.perf_counter()
    for turn in range(rounds):
        if turn >= 3 and (time.perf_counter() - began > enough or seconds_left() < 0):
            break
        for name, work in works.items():
            if len(works) > 1 and first[name] < _BRIEF:
                work()
            seconds[name].append(_seconds(work, device))
    return seconds


def rows_of(
    seconds: Mapping[str, Sequence[float]],
    floors: Sequence[str],
    known: Mapping[str, object],
    key: str,
) -> list[Row]:
    """Return a row for each work, its name under `key`, with what is `known` of all.

    `ratio` is the median over rounds of its time over that of the best floor in the same round.
    """
    floor = min((seconds[name] for name in floors), key=statistics.median)
    return [
        {
            **known,
            key: name,
            "ratio": ratio(spent, floor),
            **milliseconds(spent),
            "rounds": len(spent),
        }
        for name, spent in seconds.items()
    ]


def ratio(spent: Sequence[float], floor: Sequence[float]) -> float:
    """Return the median over rounds of the seconds spent over those of the floor."""
    return statistics.median(s / f for s, f in zip(spent, floor, strict=True))


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the least and the most, as rows of a bench have them."""
    return {
        "ms": 1000 * statistics.median(seconds),
        "ms_min": 1000 * min(seconds),
        "ms_max": 1000 * max(seconds),
    }


def _seconds(work: Work, device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
