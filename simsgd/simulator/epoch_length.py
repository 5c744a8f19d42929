"""Counts the batches of an epoch."""

from ..settings import require
from ..units import counted


def worker_batches(n: int, workers: int, batch: int, devices: int = 1) -> int:
    """Return how many batches of `workers` * `devices` * `batch` samples an epoch of `n` holds.

    The last is whole. Raises `SettingError` if there is none.

    >>> worker_batches(4000, workers=16, batch=8)
    31
    """
    places = workers * devices
    most = n // places
    fix = f"at most {most} fits"
    if not most:
        fix = f"use at most {counted(max(1, n // batch // devices), 'worker')}, or smaller batches"
    of_each = f" of {devices} devices" if devices > 1 else ""
    rule = f"times {workers} workers{of_each} must not exceed the {n} training samples"
    require(places * batch <= n, "batch_size", batch, rule, fix)
    return n // (places * batch)
