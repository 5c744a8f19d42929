"""Records where a run was made: versions, machine, state of the code."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from .. import __version__


def environment(device: str) -> dict[str, object]:
    """Return what config.json says of the place of a run on `device`."""
    on_gpu = device.startswith("cuda")
    return {
        "simsgd": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "git": _git_state(),
    }


def _git_state() -> str | None:
    """Return the commit of the folder that one works in, "-dirty" if changed; None outside git."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # which cuBLAS wants to be asked for a fixed order


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Have torch take fixed orders only, if `wanted`, and afterwards what it took before.

    An operation that has none raises a RuntimeError that names it.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    quick, workspace = torch.backends.cudnn.benchmark, os.environ.get(_WORKSPACE)
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=lenient)
        torch.backends.cudnn.benchmark = quick
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
