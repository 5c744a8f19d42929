"""DeMo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "demo")
@dataclass(frozen=True)
class DeMo(Preset):
    """Decoupled momentum: the 32 largest cosines of each tile of it are sent, and forgotten.

    m = beta m + g; c = the 32 largest of the DCT of each tile of m; m = m - IDCT(c); u = IDCT of
    the mean of c over those who sent each; p = p - lr (sign(u) + wd p).
    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
    https://arxiv.org/abs/2411.19870.

    Differs from the paper: the gradient enters the momentum as it is, not times lr, which is the
    same where lr is constant. Tensors of four dimensions, which the code cannot take, are matrices
    [first, others]. Indices are packed, 12 bits each; the code sends int64 (index-dtype int64).
    """

    settings: ClassVar = {
        "algorithm": "allreduce",
        "aggregate": "senders:sign=true",
        "compressor": "tiled_topk:32,basis=dct",
        "memory": "residual:beta=0.999",
        "compress_if": "all",
        "index_dtype": "packed",
        "optimizer": "SGD",
        "momentum": 0.0,
        "nesterov": False,
    }
