"""Estimates the gradient noise scale from the gradients of the workers.

Letters: W workers, L hosted here, B global batch, n elements of one parameter.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..settings import SettingError
from .components import Components

_BLOCK = 1 << 20  # numbers that are made float64 at a time


@dataclass(frozen=True)
class GradientNoise:
    """Unbiased estimates from one step; they stay on the device until they are read."""

    square: Tensor  # |G|^2 of the true gradient G, may come out negative; 0-dim float64
    variance: Tensor  # tr(Sigma), summed over all entries, of one sample's gradient; 0-dim float64

    @property
    def scale(self) -> Tensor:
        """tr(Sigma) / |G|^2 in samples; nan where the estimate of |G|^2 is not above 0."""
        return torch.where(self.square > 0, self.variance / self.square, torch.nan)


def estimate_noise(
    gradients: Iterable[Tensor],
    samples: Tensor,
    all_gather: Callable[[Tensor], Tensor],
) -> GradientNoise:
    """Return the estimates from `gradients` [L, ...], one for each parameter.

    Worker w's is the mean gradient g_w of its `samples` [W], m_w of M = sum_w m_w; workers without
    samples are left out, and W are those that remain. `all_gather` returns [W, n] for [L, n]. With
    the mean gradient g = sum_w m_w g_w / M and p_w = m_w / M

        tr(Sigma) = M / (W - 1) * sum_w p_w |g_w - g|^2
        |G|^2     = |g|^2 - tr(Sigma) / M

    which for equal m_w is equations A.2 and A.3, with a worker's batch for the small one and all
    workers' for the large one, of McCandlish, Kaplan, Amodei, "An Empirical Model of Large-Batch
    Training", 2018, https://arxiv.org/abs/1812.06162, and exact where they differ. Both are nan
    with fewer than two workers.
    """
    counts = samples.double()
    total, workers = counts.sum(), (counts > 0).sum()
    shares = counts / total  # [W]
    spread = square = torch.zeros((), dtype=torch.float64, device=counts.device)
    for gradient in gradients:
        rows = all_gather(gradient.reshape(len(gradient), -1))  # [W, n]
        for block in rows.split(max(1, _BLOCK // len(rows)), dim=1):
            own = block.double().masked_fill(counts.unsqueeze(1) == 0, 0)
            mean = shares @ own  # [n]
            square = square + mean.square().sum()
            spread = spread + shares @ (own - mean).square().sum(1)
    variance = torch.where(workers > 1, total / (workers - 1) * spread, torch.nan)
    return GradientNoise(square=square - variance / total, variance=variance)


def check_one_model(parts: Components) -> None:
    """Raise `SettingError` where workers' gradients belong to different models."""
    if not parts.recipe.noise_scale or not parts.parameters.per_worker:
        return
    rule = f"needs workers that share one model, and those of {parts.recipe.algorithm} do not"
    raise SettingError("noise_scale", None, rule, "leave it out, or use algorithm allreduce")


def measure_noise(parts: Components, gradients: Iterable[Tensor], batch: int) -> GradientNoise:
    """Return the estimates of a step on a global batch of B = `batch` samples.

    Workers whose gradient counts as 0, not being finite, are left out.
    """
    counts = torch.full((parts.recipe.workers,), batch // parts.recipe.workers)
    counts = counts.to(parts.workers.device)
    if parts.guard.nonfinite is not None and parts.guard.applied:
        counts = counts.masked_fill(parts.guard.nonfinite, 0)
    return estimate_noise(gradients, counts, parts.transport.all_gather_rows)
