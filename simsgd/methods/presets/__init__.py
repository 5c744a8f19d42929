"""Published methods as compositions of what is here: one file each, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Preset, preset_of

__all__ = ["Preset", "preset_of"]
