"""Counts the batches of an epoch."""

from ..settings import require
from ..units import counted


def worker_batches(n: int, workers: int, batch: int) -> int:
    """Return how many batches of `workers` * `batch` samples an epoch of `n` holds, the last whole.

    Raises `SettingError` if there is none.

    >>> worker_batches(4000, workers=16, batch=8)
    31
    """
    most = n // workers
    fix = f"at most {most} fits"
    if not most:
        fix = f"use at most {counted(max(1, n // batch), 'worker')}, or smaller batches"
    rule = f"times {workers} workers must not exceed the {n} training samples"
    require(workers * batch <= n, "batch_size", batch, rule, fix)
    return n // (workers * batch)
