"""MuLoCo."""

import re
from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


def embeddings_and_decoders(name: str, parameter: object) -> bool:
    """Return whether a parameter is one of these, by their usual names."""
    return re.search(r"emb|places|decoder|head|wte|wpe", name) is not None


@register("preset", "muloco")
@dataclass(frozen=True)
class MuLoCo(Preset):
    """DiLoCo with Muon inside, whose change is sent every 30 steps in 2 bits.

    Inside: M = mu M + G; W = W - lr 0.2 sqrt(max(rows, cols)) NewtonSchulz(G + mu M) for matrices,
    AdamW for the rest; e = e + a - theta_r; s = Q(e); e = e - s; outside a step of SGD with
    Nesterov momentum along mean_r s.
    Therien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025,
    https://arxiv.org/abs/2505.23725.

    Differs from the paper: lr and momentum outside are those of modded-nanogpt's form. Muon's step
    is scaled to the size of AdamW's, so that both take the regime's lr. Tensors of one dimension go
    whole.
    """

    settings: ClassVar = {
        "algorithm": "diloco",
        "local_steps": 30,
        "outer_optimizer": "nesterov",
        "outer_lr": 0.7,
        "outer_momentum": 0.5,
        "compressor": "bins:2",
        "memory": "residual",
    }
    regime: ClassVar = {
        0: {
            "optimizer": "Muon",
            "momentum": 0.95,
            "nesterov": True,
            "adjust_lr_fn": "match_rms_adamw",
            "param_groups": [{"params": ["dim!=2", embeddings_and_decoders], "optimizer": "AdamW"}],
        }
    }
