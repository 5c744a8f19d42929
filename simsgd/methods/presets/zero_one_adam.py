"""0/1 Adam."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "zero_one_adam")
@dataclass(frozen=True)
class ZeroOneAdam(Preset):
    """Adam of gradients in signs, whose variance is seldom updated; later with local steps.

    Up to step 100 v is updated from whole gradients every 1, 2, 4 ... steps; in the others signs of
    gradients go both ways. Then v is frozen, each worker steps along its own momentum, and every 1,
    2, 4 ... 16 steps u = (a - theta_r) sqrt(v) goes as signs both ways: a = a - u / sqrt(v), m = u
    / (sum of lr).
    Lu, Li, Zhang, De Sa, He, "Maximizing Communication Efficiency for Large-scale Training via 0/1
    Adam", ICLR 2023, https://arxiv.org/abs/2202.06009.

    Differs from the paper: the 100 steps until v is frozen, and as many until an interval doubles,
    are for runs of some hundreds. Steps are local only once v is frozen, as in DeepSpeed. Tensors
    of one dimension go whole.
    """

    settings: ClassVar = {
        "algorithm": "zero_one_adam:freeze_step=100,local_scaler=100",
        "compressor": "sign:rms",
        "optimizer": "SGD",
        "momentum": 0.0,
        "nesterov": False,
    }
