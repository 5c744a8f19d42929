"""What is made of the messages of all workers: one file a rule, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Aggregation

__all__ = ["Aggregation"]
