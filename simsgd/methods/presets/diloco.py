"""DiLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "diloco")
@dataclass(frozen=True)
class DiLoCo(Preset):
    """Local steps, whose mean change is a step of SGD with Nesterov momentum every 30 steps.

    a = a - lr (g + m v), v = m v + g, g = a - mean_r theta_r.
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
    https://arxiv.org/abs/2311.08105.

    Differs from the paper: 30 steps of each worker in place of 500.
    """

    settings: ClassVar = {
        "algorithm": "diloco",
        "local_steps": 30,
        "outer_optimizer": "nesterov",
        "outer_lr": 0.7,
        "outer_momentum": 0.9,
    }
