"""What a worker can afford to say: one class a method, made by name.

Importing this package registers all of them.
"""

from . import adacomp, cast, grace, sign, sparsify, stochastic, threshold, variance
from . import none as dense
from . import powersgd as lowrank
from . import sampled_topk as sampled
from .compose import composed
from .contract import Compressor, MultiRound, Quantizer, StepInfo

__all__ = [
    "Compressor",
    "MultiRound",
    "Quantizer",
    "StepInfo",
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
