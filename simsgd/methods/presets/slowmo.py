"""SlowMo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "slowmo")
@dataclass(frozen=True)
class SlowMo(Preset):
    """Local steps, and every 48 of them a step along a slow momentum of what models moved.

    u = 0.5 u + (a - mean_r theta_r) / lr; a = a - lr u; all go on from a. lr is the inner one.
    Wang, Tantia, Ballas, Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD with
    Slow Momentum", ICLR 2020, https://arxiv.org/abs/1910.00643.

    Differs from the paper: 48 steps, 0.5 and an outer lr of 1 are those of torchdistx; the paper
    has 12 or 48 steps and 0.4 to 0.8. The workers' own momenta are kept, as with
    `--inner-state keep`; the paper also sets them to zero, `--inner-state reset`.
    """

    settings: ClassVar = {
        "algorithm": "diloco",
        "local_steps": 48,
        "outer_optimizer": "slowmo",
        "outer_lr": 1.0,
        "outer_momentum": 0.5,
    }
