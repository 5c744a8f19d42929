"""Stochastic gradient push."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "sgp")
@dataclass(frozen=True)
class SGP(Preset):
    """Each worker sends half of its sum to another one, which changes from step to step.

    x_i = x_i - lr d_i; x_i = (x_i + x_j) / 2; w_i = (w_i + w_j) / 2; z_i = x_i / w_i, where j is i
    + 1, i + 2, i + 4 ... in turn.
    Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", ICML
    2019, https://arxiv.org/abs/1811.10792.

    Differs from the paper: the code also sends 1, 2, 4 ... back in turn. What is sent arrives in
    the same step, without the overlap of OSGP.
    """

    settings: ClassVar = {"algorithm": "sgp", "topology": "one-peer"}
