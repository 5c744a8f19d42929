"""SparseLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "sparseloco")
@dataclass(frozen=True)
class SparseLoCo(Preset):
    """Local steps, whose change is sent every 15 steps: the 64 largest of each tile, in 2 bits.

    e = beta e + (theta - theta_r); s = Q(TopK(e)) by tiles of 64 x 64; e = e - s; theta = theta -
    mean_r s. Tensors of one dimension go whole.
    Sarfi, Therien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    2025, https://arxiv.org/abs/2508.15706.

    Differs from the paper: no worker's message is scaled to the median of the norms. CCLoco, its
    code, takes the mean over senders (aggregate senders), and scales what enters the memory in
    place of the outer step (memory residual:beta=0.999,gamma=0.7).
    """

    settings: ClassVar = {
        "algorithm": "diloco",
        "local_steps": 15,
        "outer_optimizer": "sgd",
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "compressor": "tiled_topk:64+bins:2",
        "memory": "residual:beta=0.95",
        "index_dtype": "packed",
    }
