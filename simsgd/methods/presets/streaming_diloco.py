"""Streaming DiLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "streaming_diloco")
@dataclass(frozen=True)
class StreamingDiLoCo(Preset):
    """DiLoCo by fragments: one of three every 10 steps, in 4-bit floats, 5 steps on its way.

    At t: g_p = a_p - mean_r Q(theta_r,p); at t + tau: a_p = outer Nesterov of g_p, theta_r,p =
    alpha theta_r,p + (1 - alpha) a_p.
    Douillard et al., "Streaming DiLoCo with Overlapping Communication: Towards a Distributed Free
    Lunch", 2025, https://arxiv.org/abs/2501.18512.

    Differs from the paper: three fragments in place of one for every three layers; 4-bit floats
    are relative to the largest magnitude of each tensor; tensors of one dimension go whole.
    """

    settings: ClassVar = {
        "algorithm": "streaming:fragments=3,delay=5,mixing=0.5,local_steps=30",
        "outer_optimizer": "nesterov",
        "outer_lr": 0.4,
        "outer_momentum": 0.9,
        "compressor": "e3m0",
        "memory": "none",
    }
