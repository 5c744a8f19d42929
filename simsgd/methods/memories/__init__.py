"""What of a gradient is kept until it is sent: one file a memory, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Memory
from .dgc import DGC
from .ef21 import EF21
from .momentum import LocalMomentum
from .none import NoMemory
from .residual import Residual

__all__ = ["DGC", "EF21", "LocalMomentum", "Memory", "NoMemory", "Residual"]
