"""Dion and Dion2."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset

_INSIDE: dict[float, dict[str, object]] = {
    0: {
        "optimizer": "SGD",
        "momentum": 0.0,
        "nesterov": False,
        "param_groups": [
            {"params": "dim<2", "optimizer": "AdamW"},
            {"params": "dim>1", "lr_mult": 10.0},
        ],
    }
}


@register("preset", "dion")
@dataclass(frozen=True)
class Dion(Preset):
    """Orthonormal updates of rank 32 of each matrix, by two all-reduces of thin factors a step.

    M = M + G; P = orth(mean M Q); R = mean M^T P; M = M - (1 - mu) P R^T; Q = R with unit columns;
    X = (1 - lr wd) X - lr sqrt(rows / cols) P Q^T. AdamW for tensors of one dimension, whole.
    Ahn, Xu, Abreu, Langford, "Dion: Distributed Orthonormalized Updates", 2025,
    https://arxiv.org/abs/2504.05295.

    Differs from the paper: embeddings are matrices like all others. The lr of matrices is ten times
    the regime's, which is AdamW's.
    """

    settings: ClassVar = {
        "algorithm": "allreduce",
        "compressor": "dion:32",
        "memory": "residual",
    }
    regime: ClassVar = _INSIDE


@register("preset", "dion2")
@dataclass(frozen=True)
class Dion2(Preset):
    """The largest quarter of the rows of each matrix's momentum is sent, and made orthonormal.

    M = M + G; the rows of largest mean sum of magnitudes: O = NewtonSchulz(mean M), M = 0.95 M,
    X = X - lr sqrt(rows / cols) O. AdamW for tensors of one dimension, which go whole.
    Ahn et al., "Dion2: A Simple Method to Shrink Matrix in Muon", 2025,
    https://arxiv.org/abs/2512.16928.

    Differs from the paper: each worker has a momentum of its own gradient, of which the rows that
    are not sent stay; there the mean gradient is sent whole. The lr of matrices is ten times the
    regime's, which is AdamW's.
    """

    settings: ClassVar = {
        "algorithm": "allreduce",
        "compressor": "dion2:0.25",
        "memory": "residual",
    }
    regime: ClassVar = _INSIDE
