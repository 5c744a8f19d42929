"""What workers that want training to fail send: one file an attack, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Attack, attack_of

__all__ = ["Attack", "attack_of"]
