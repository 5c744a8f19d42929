"""What is made of the messages of all workers: one file a rule, made by name.

`simsgd.registry` finds a file that is placed here by itself.
"""

from .contract import Aggregation, aggregated_by, aggregation_of

__all__ = ["Aggregation", "aggregated_by", "aggregation_of"]
