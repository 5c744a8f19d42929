"""Times the parts of a step, without waiting for the device.

Letters: L workers hosted here.
"""

import time

import torch
from torch import Tensor


class StepTimer:
    """The seconds of one step's parts, those of one worker: the process's over its L workers.

    `compute` is forward and backward. `compression` is all from there to the mean: clipping,
    memory, compressor, forming the mean, and what the simulation measures of it for its record.

    On a GPU the ends of parts are events in its queue, which hold nothing up; reading a number
    waits for the last of them.

    >>> timer = StepTimer(torch.arange(4))
    >>> timer.mark("compute")
    >>> timer.seconds("compute") >= 0, timer.seconds("compression")
    (True, 0.0)
    """

    def __init__(self, workers: Tensor) -> None:
        self.workers = len(workers)
        self.on_gpu = workers.is_cuda
        self._ends = [("", self._now())]

    def mark(self, part: str) -> None:
        """Count the time since the last call, or since the step began, as spent on a part."""
        self._ends.append((part, self._now()))

    def seconds(self, part: str) -> float:
        """Return what one worker spent on a part."""
        names = [name for name, _ in self._ends]
        if part not in names[1:]:
            return 0.0
        place = names.index(part, 1)
        began, ended = self._ends[place - 1][1], self._ends[place][1]
        return _between(began, ended) / self.workers

    def _now(self) -> "float | torch.cuda.Event":
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(began: "float | torch.cuda.Event", ended: "float | torch.cuda.Event") -> float:
    if isinstance(began, float) and isinstance(ended, float):
        return ended - began
    assert not isinstance(began, float)
    assert not isinstance(ended, float)
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
