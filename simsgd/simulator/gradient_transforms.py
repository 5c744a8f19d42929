"""Transforms of each worker's gradient before anything is exchanged: clipping and penalties.

Letters: W simulated workers, L hosted here, n elements of one segment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.segments import Layout
from ..gradients.contract import Tensors
from .regularizers import Regularized
from .step_settings import StepSettings
from .worker_parameters import Parameters


@dataclass(frozen=True)
class Clip:
    """The norm or value that each worker's gradient is held to."""

    threshold: float
    by: str  # global-norm, per-tensor or value
    averaged: int  # gradients that the algorithm averages, W; 1 if each worker uses its own


def transform_gradients(
    gradients: Tensors,
    layout: Layout,
    settings: StepSettings,
    clip: Clip | None,
    regularized: Regularized,
    parameters: Parameters,
    unused: frozenset[str] = frozenset(),
) -> list[Tensor]:
    """Return gradients {name: [L, *shape]} by segment, [L, n] each, clipped and penalized.

    Parameters that nobody used are not penalized.
    """
    segments = layout.split(gradients)
    if clip is not None:
        clip_(segments, clip.threshold, clip.averaged, clip.by)
    decays = bool(settings.local_decay or settings.decay_groups)
    if settings.penalize_locally and (decays or settings.regularizers):
        penalties = regularized.rows(
            settings.regularizers,
            regularized.decays(settings.local_decay, settings.decay_groups),
            parameters.read(),
            parameters.per_worker,
        )
        penalties |= {name: torch.zeros_like(penalties[name]) for name in unused}
        for gradient, penalty in zip(segments, layout.split(penalties), strict=True):
            gradient.add_(penalty)
    return segments


def clip_(
    segments: Sequence[Tensor], threshold: float, workers: int, by: str = "global-norm"
) -> None:
    """Clip each worker's gradient in place.

    `segments` are those [L, n] of the gradient of each worker's own mean loss, before any
    division by W.

    `by` is "global-norm": all of a worker's gradient is scaled to a norm of at most
    `threshold / sqrt(W)`; or "per-tensor": each segment is, by its own norm; or "value": each
    entry is held within `threshold`, whatever W is.

    The norm's threshold is divided because W independent gradients add up to sqrt(W) times the
    norm of one (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.2).
    """
    if by == "value":
        for segment in segments:
            segment.clamp_(-threshold, threshold)
        return
    squares = [segment.square().sum(1) for segment in segments]  # [L] each
    if by == "global-norm":
        squares = [torch.stack(squares).sum(0)] * len(segments)
    for segment, square in zip(segments, squares, strict=True):
        scale = (threshold / math.sqrt(workers) / square.sqrt()).clamp(max=1.0)  # [L]
        segment.mul_(scale.unsqueeze(1))
