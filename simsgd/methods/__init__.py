"""What the papers say, one class each: compressors, memories, algorithms and more.

All that a method of one's own is made of, imported at its first use:

>>> from simsgd.methods import Compressor, Sparse, StepInfo, register
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..communication.messages import Cast as Cast
    from ..communication.messages import Codebook as Codebook
    from ..communication.messages import Dense as Dense
    from ..communication.messages import Foreign as Foreign
    from ..communication.messages import Levels as Levels
    from ..communication.messages import LowRank as LowRank
    from ..communication.messages import Message as Message
    from ..communication.messages import Powers as Powers
    from ..communication.messages import SharedSparse as SharedSparse
    from ..communication.messages import Signs as Signs
    from ..communication.messages import Sparse as Sparse
    from ..communication.messages import State as State
    from ..communication.messages import Ternary as Ternary
    from ..communication.messages import TiledSparse as TiledSparse
    from ..communication.mixing import Mixing as Mixing
    from ..communication.segments import Segment as Segment
    from ..communication.topology import topology as topology
    from ..communication.transport import Channel as Channel
    from ..keyed_random import RandomKey as RandomKey
    from ..registry import register as register
    from ..settings import SettingError as SettingError
    from ..settings import count as count
    from ..settings import require as require
    from .aggregations import Aggregation as Aggregation
    from .algorithms import Algorithm as Algorithm
    from .algorithms import ExchangeContext as ExchangeContext
    from .algorithms import Exchanged as Exchanged
    from .algorithms import GradientAlgorithm as GradientAlgorithm
    from .algorithms import ParameterAlgorithm as ParameterAlgorithm
    from .attacks import Attack as Attack
    from .compressors import Compressor as Compressor
    from .compressors import MultiRound as MultiRound
    from .compressors import Quantizer as Quantizer
    from .compressors import StepInfo as StepInfo
    from .compressors import composed as composed
    from .memories import Memory as Memory
    from .outer_optimizers import OuterOptimizer as OuterOptimizer
    from .presets import Preset as Preset

_NAMES = {  # what is public, and where it is defined
    "..communication.messages": (
        "Cast", "Codebook", "Dense", "Foreign", "Levels", "LowRank", "Message", "Powers",
        "SharedSparse", "Signs", "Sparse", "State", "Ternary", "TiledSparse",
    ),
    "..communication.segments": ("Segment",),
    "..communication.topology": ("Mixing", "topology"),
    "..keyed_random": ("RandomKey",),
    "..registry": ("register",),
    "..settings": ("SettingError", "count", "require"),
    "..communication.transport": ("Channel",),
    ".aggregations": ("Aggregation",),
    ".algorithms": (
        "Algorithm", "ExchangeContext", "Exchanged", "GradientAlgorithm", "ParameterAlgorithm",
    ),
    ".attacks": ("Attack",),
    ".compressors": ("Compressor", "MultiRound", "Quantizer", "StepInfo", "composed"),
    ".memories": ("Memory",),
    ".outer_optimizers": ("OuterOptimizer",),
    ".presets": ("Preset",),
}  # fmt: skip
_PLACES = {name: place for place, names in _NAMES.items() for name in names}
__all__ = sorted(_PLACES)


if not TYPE_CHECKING:  # a type checker is to know the names above, and no others

    def __getattr__(name: str) -> object:
        """Import what a public name stands for at its first use, so that `--help` is instant."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_PLACES[name], __name__), name)


def __dir__() -> list[str]:
    return __all__
