"""Runs that are the same to the last bit on a GPU too, where some sums have no fixed order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
