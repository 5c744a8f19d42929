"""NoLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "noloco")
@dataclass(frozen=True)
class NoLoCo(Preset):
    """Every 50 steps pairs of workers move slow weights along what both changed: no all-reduce.

    m = alpha m + beta mean_pair(p - phi) + gamma (mean_pair(phi) - phi); phi = phi + m; p = phi.
    Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, "NoLoCo: No-all-reduce Low Communication Training
    Method for Large Models", 2025, https://arxiv.org/abs/2506.10911.

    Differs from the paper: gamma is 0.7 whatever alpha and beta are.
    """

    settings: ClassVar = {"algorithm": "noloco:alpha=0.5,beta=0.7,gamma=0.7,local_steps=50"}
