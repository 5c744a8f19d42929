"""What becomes of gradients before anybody speaks of them: clipping, and pulls added locally.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.segments import Layout
from ..gradients.contract import Tensors
from ..methods.algorithms import Algorithm, GradientAlgorithm
from ..recipe import Recipe
from .regularizers import Regularized
from .step_settings import Method
from .worker_parameters import Parameters


def prepared(
    values: Tensors,
    layout: Layout,
    recipe: Recipe,
    method: Method,
    exchange: Algorithm,
    regularized: Regularized,
    held: Parameters,
) -> list[Tensor]:
    """Return gradients {name: [L, *shape]} by segment, [L, n] each, clipped and regularized."""
    pieces = layout.split(values)
    if recipe.clip is not None:
        averaged = isinstance(exchange, GradientAlgorithm)
        clip_(pieces, recipe.clip, recipe.workers if averaged else 1, recipe.clip_by)
    if method.locally and (method.local_decay or method.regularizers):
        read, rows = held.read(), held.per_worker
        pulls = regularized.rows(method.regularizers, method.local_decay, read, rows)
        for piece, pull in zip(pieces, layout.split(pulls), strict=True):
            piece.add_(pull)
    return pieces


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
