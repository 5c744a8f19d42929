"""Measures the peak memory of a run, where the system reports it."""

import importlib
import sys
from pathlib import Path

import torch
from torch import nn

from ... import compiled_loops
from ...keyed_random import RandomKey
from ...units import in_units
from ..data import readers
from .malloc import trim

_PROC = Path("/proc/self")
_RESET = "5"  # what resets the peak of a process on Linux, see proc(5)


class Peak:
    """The most memory in use since it was made, above what was in use then.

    On a GPU that is what torch allocated there; on the CPU the growth of the process's resident
    memory, which libraries loaded meanwhile are part of: see `load` and `load_kernels`.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        elif sys.platform == "linux":
            trim()
            _reset()
        self._before = self._now()

    def sentence(self) -> str:
        """Return a line for the log."""
        most = self.bytes()
        if most is None:
            return "peak memory is not reported by this system"
        beyond = "allocated on the GPU" if self.device.startswith("cuda") else "beyond libraries"
        return f"peak memory {in_units(most)} {beyond}"

    def bytes(self) -> int | None:
        """Return it; None where the system does not tell."""
        if self.device.startswith("cuda"):
            return int(torch.cuda.max_memory_allocated(self.device)) - self._before
        most = _resident("VmHWM") if sys.platform == "linux" else None
        return None if most is None else max(0, most - self._before)

    def kept(self) -> int:
        """Return how much more is in use now; 0 where the system does not tell."""
        trim()
        return max(0, self._now() - self._before)

    def load_kernels(self, elements: int) -> None:
        """Load compiled loops if they serve a segment of so many elements; they do not count."""
        before = self._now()
        if self.device != "cpu" or not compiled_loops.worth_loading(elements):
            return
        with compiled_loops.switched(True):
            RandomKey(0, torch.zeros(1, dtype=torch.int64)).uniform(1)
        self._before += max(0, self._now() - before)

    def _now(self) -> int:
        if self.device.startswith("cuda"):
            return int(torch.cuda.memory_allocated(self.device))
        return (_resident("VmRSS") or 0) if sys.platform == "linux" else 0


def load(dataset: str) -> None:
    """Import what a run on a data set does, and take a step of a small model, which loads more."""
    for name in ["pandas", *readers(dataset)]:  # pandas writes the tables
        importlib.import_module(name)
    modes = torch.inference_mode(False), torch.enable_grad()  # whatever it is called within
    with torch.random.fork_rng(devices=[]), modes[0], modes[1]:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 8)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(4, 3, 8, 8)).logsumexp(1).sum().backward()
        optimizer.step()


def _resident(name: str) -> int | None:
    """Return a number of /proc/self/status in bytes."""
    try:
        lines = (_PROC / "status").read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    return sizes[0] if sizes else None


def _reset() -> None:
    try:
        (_PROC / "clear_refs").write_text(_RESET)
    except OSError:  # the peak is then that of the whole process
        return
