"""How gradients become messages: one file a compressor, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .compose import composed
from .contract import Compressor, MultiRound, Quantizer, StepInfo

__all__ = ["Compressor", "MultiRound", "Quantizer", "StepInfo", "composed"]
