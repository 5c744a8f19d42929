"""How sparse messages of all workers become their mean: one file a collective.

Each returns what of its own message every worker's share of the mean holds, so that a memory keeps
what was rejected on the way: what all workers sent adds up to W times the mean.
"""

from .choice import exchange_sparse, received_bytes, why_not_of, why_not_with

__all__ = ["exchange_sparse", "received_bytes", "why_not_of", "why_not_with"]
