"""QG-DSGDm."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "qg_dsgdm")
@dataclass(frozen=True)
class QGDSGDm(Preset):
    """Gossip of models on a ring, whose momentum is what a model moved by, neighbors included.

    theta_half = theta - lr (g + 0.9 m); theta' = sum_j w_ij theta_half_j;
    m = 0.9 m + 0.1 (theta - theta') / lr.
    Lin, Karimireddy, Stich, Jaggi, "Quasi-Global Momentum: Accelerating Decentralized Deep Learning
    on Heterogeneous Data", ICML 2021, https://arxiv.org/abs/2102.04761.

    Differs from the paper: mixing weights are Metropolis-Hastings ones. With Nesterov's momentum,
    as in most of its tables, it is `--algorithm qg_dsgdm:nesterov=true`.
    """

    settings: ClassVar = {
        "algorithm": "qg_dsgdm:beta=0.9,mu=0.9",
        "topology": "ring",
        "optimizer": "SGD",
        "momentum": 0.0,
        "nesterov": False,
    }
