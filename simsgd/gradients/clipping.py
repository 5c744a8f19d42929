"""Local gradient clipping, each worker on its own.

Letters: W simulated workers, L hosted here, n elements of one segment.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def clip_(
    pieces: Sequence[Tensor], threshold: float, workers: int, by: str = "global-norm"
) -> None:
    """Clip each worker's gradient in place.

    `pieces` are the segments [L, n] of the gradient of each worker's own mean loss, before any
    division by W.

    `by` is "global-norm": all of a worker's gradient is scaled to a norm of at most
    `threshold / sqrt(W)`; or "per-tensor": each segment is, by its own norm; or "value": each
    entry is held within `threshold`, whatever W is.

    The norm's threshold is divided because W independent gradients add up to sqrt(W) times the
    norm of one (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.2).
    """
    if by == "value":
        for piece in pieces:
            piece.clamp_(-threshold, threshold)
        return
    squares = [piece.square().sum(1) for piece in pieces]  # [L] each
    if by == "global-norm":
        squares = [torch.stack(squares).sum(0)] * len(pieces)
    for piece, square in zip(pieces, squares, strict=True):
        scale = (threshold / math.sqrt(workers) / square.sqrt()).clamp(max=1.0)  # [L]
        piece.mul_(scale.unsqueeze(1))
