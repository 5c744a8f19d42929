"""What a worker can afford to say: one class a method, made by name.

Importing this package registers all of them.
"""

from . import (
    adacomp,
    cast,
    dense,
    grace,
    lowrank,
    sampled,
    sign,
    sparsify,
    stochastic,
    threshold,
    variance,
)
from .compose import composed
from .contract import Compressor, Conversation, Quantiser

__all__ = [
    "Compressor",
    "Conversation",
    "Quantiser",
    "adacomp",
    "cast",
    "composed",
    "dense",
    "grace",
    "lowrank",
    "sampled",
    "sign",
    "sparsify",
    "stochastic",
    "threshold",
    "variance",
]
