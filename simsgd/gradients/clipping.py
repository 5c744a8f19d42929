"""Local gradient clipping, each worker on its own.

Letters: W simulated workers, L hosted here, n elements of one segment.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def clip_(pieces: Sequence[Tensor], threshold: float, workers: int) -> None:
    """Scale in place each worker's gradient to a norm of at most `threshold / sqrt(W)`.

    `pieces` are the segments [L, n] of the gradient of each worker's own mean loss, before any
    division by W; the norm is taken over all of a worker's segments. The threshold is divided
    because W independent gradients add up to sqrt(W) times the norm of one (Lin et al., "Deep
    Gradient Compression", ICLR 2018, section 3.2).
    """
    squares = torch.stack([piece.square().sum(1) for piece in pieces]).sum(0)  # [L]
    scale = (threshold / math.sqrt(workers) / squares.sqrt()).clamp(max=1.0)  # [L]
    for piece in pieces:
        piece.mul_(scale.unsqueeze(1))
