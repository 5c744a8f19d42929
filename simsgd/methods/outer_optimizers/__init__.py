"""How a common model moves along the mean change of its workers' models: one file each.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import OuterOptimizer, move_, outer_optimizer_of, state_of

__all__ = ["OuterOptimizer", "move_", "outer_optimizer_of", "state_of"]
