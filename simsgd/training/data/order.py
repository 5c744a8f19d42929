"""Orders the samples of an epoch, and counts its batches.

Letters: n samples, W workers, b samples each.
"""

import hashlib

import torch
from torch import Tensor


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order [n] of the samples in an epoch, a function of (seed, epoch) alone."""
    digest = hashlib.sha256(f"epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.randperm(n, generator=generator)
