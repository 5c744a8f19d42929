"""Published methods as compositions of what is here: one file each, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Preset

__all__ = ["Preset"]
