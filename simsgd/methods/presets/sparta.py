"""SPARTA, alone and with DiLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "sparta")
@dataclass(frozen=True)
class Sparta(Preset):
    """After every step a random half percent of the parameters is averaged, the same for all.

    theta_r[mask] = mean_r theta_r[mask], P(in mask) = 0.005, the mask from a shared seed.
    Beton, Howes, Cheema, Ho, "SPARTA: Distributed training with sparse parameter averaging", MCDC
    workshop at ICLR 2025, https://openreview.net/forum?id=stFPf3gzq1.

    Differs from the paper: a mask has exactly as many entries of each tensor. exogym also sends the
    mask itself, a byte for each parameter; here it follows from the seed.
    """

    settings: ClassVar = {
        "algorithm": "sparta",
        "compressor": "randomk:0.005,shared=true",
        "compress_if": "all",
    }


@register("preset", "sparta_diloco")
@dataclass(frozen=True)
class SpartaDiLoCo(Preset):
    """DiLoCo with rare exchanges, between which a random half percent is averaged at every step.

    theta_r[mask] = mean_r theta_r[mask] after every step; every 100 steps as DiLoCo.
    Beton, Howes, Cheema, Ho, "SPARTA: Distributed training with sparse parameter averaging", MCDC
    workshop at ICLR 2025, https://openreview.net/forum?id=stFPf3gzq1.

    Differs from the paper: a mask has exactly as many entries of each tensor.
    """

    settings: ClassVar = {
        "algorithm": "sparta_diloco:fraction=0.005,local_steps=100",
        "outer_optimizer": "nesterov",
        "outer_lr": 0.7,
        "outer_momentum": 0.9,
    }
