"""The order of an epoch's samples, and how many batches it holds.

Letters: n samples, W workers, b samples each.
"""

import hashlib

import torch
from torch import Tensor

from ..settings import require


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order [n] of the samples in an epoch, a function of (seed, epoch) alone."""
    digest = hashlib.sha256(f"epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.randperm(n, generator=generator)


def worker_batches(n: int, workers: int, batch: int) -> int:
    """Return how many batches of `workers` * `batch` samples an epoch of `n` holds, the last whole.

    Raises `SettingError` if there is none.

    >>> worker_batches(4000, workers=16, batch=8)
    31
    """
    fits = n // workers
    fix = f"at most {fits} fits" if fits else f"use at most {n} workers"
    rule = f"times {workers} workers must not exceed the {n} training samples"
    require(workers * batch <= n, "batch_size", batch, rule, fix)
    return n // (workers * batch)
