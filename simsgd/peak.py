"""How much memory a run took at its peak, as far as the system tells."""

import importlib
import sys
from pathlib import Path

import torch
from torch import nn

from .units import in_units

_PROC = Path("/proc/self")
_RESET = "5"  # what resets the peak of a process on Linux, see proc(5)


class Peak:
    """The most memory in use since it was made, above what was in use then.

    On a GPU that is what torch allocated there. On the CPU it is the growth of the process's
    resident memory, after a step of a small model that loads the libraries which a run needs.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._before = 0
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        elif sys.platform == "linux":
            _load_libraries()
            _reset()
            self._before = _resident("VmRSS") or 0

    def told(self) -> str:
        """Return a line for the log."""
        most = self.bytes()
        if most is None:
            return "peak memory is not told by this system"
        beyond = "allocated on the GPU" if self.device.startswith("cuda") else "beyond libraries"
        return f"peak memory {in_units(most)} {beyond}"

    def bytes(self) -> int | None:
        """Return it; None where the system does not tell."""
        if self.device.startswith("cuda"):
            return int(torch.cuda.max_memory_allocated(self.device)) - self._before
        most = _resident("VmHWM") if sys.platform == "linux" else None
        return None if most is None else max(0, most - self._before)


def _load_libraries() -> None:
    importlib.import_module("pandas")  # with which the tables of a run are written
    with torch.random.fork_rng(devices=[]):
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
