"""Conversations between workers: who hears what of what is said.

Importing this package registers all of them.
"""

from .allreduce import AllReduce
from .asynchronous import Asynchronous, Butterfly
from .contract import Algorithm, ExchangeContext, Exchanged, GradientAlgorithm, ParameterAlgorithm
from .gossip import Choco, Gossip
from .local import FedAvg, LocalSGD

__all__ = [
    "Algorithm",
    "AllReduce",
    "Asynchronous",
    "Butterfly",
    "Choco",
    "ExchangeContext",
    "Exchanged",
    "FedAvg",
    "Gossip",
    "GradientAlgorithm",
    "LocalSGD",
    "ParameterAlgorithm",
]
