"""1-bit Adam."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "onebit_adam")
@dataclass(frozen=True)
class OneBitAdam(Preset):
    """Adam for 100 steps; then the variance is frozen, and momenta go as signs, both ways.

    m_r = beta m + (1 - beta) g_r; sign(m_r + e_r) ||m_r + e_r|| / sqrt(n) is sent; each worker
    compresses the mean of its W-th once more; x = x - lr m / (sqrt(v) + eps).
    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021, https://arxiv.org/abs/2102.02888.

    Differs from the paper: v is corrected for its bias as it stood when it froze. Tensors of one
    dimension go whole. The 100 steps are for runs of some hundreds; the paper takes 15 to 20 % of a
    run.
    """

    settings: ClassVar = {
        "algorithm": "onebit_adam:freeze_step=100",
        "compressor": "sign:rms",
        "optimizer": "Adam",
    }
