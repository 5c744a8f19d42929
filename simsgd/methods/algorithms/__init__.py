"""Who exchanges what with whom, and when: one file an algorithm, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .allreduce import AllReduce
from .contract import (
    Algorithm,
    ExchangeContext,
    Exchanged,
    GradientAlgorithm,
    OptimizerSteps,
    ParameterAlgorithm,
    Round,
)

__all__ = [
    "Algorithm",
    "AllReduce",
    "ExchangeContext",
    "Exchanged",
    "GradientAlgorithm",
    "OptimizerSteps",
    "ParameterAlgorithm",
    "Round",
]
