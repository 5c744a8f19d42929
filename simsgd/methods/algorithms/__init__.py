"""Conversations between workers: who hears what of what is said.

Importing this package registers all of them.
"""

from .allreduce import AllReduce
from .asynchronous import Asynchronous, Butterfly
from .contract import Exchange, GradientExchange, ParameterExchange, Speech, Spoken
from .gossip import Choco, Gossip
from .local import FedAvg, LocalSGD

__all__ = [
    "AllReduce",
    "Asynchronous",
    "Butterfly",
    "Choco",
    "Exchange",
    "FedAvg",
    "Gossip",
    "GradientExchange",
    "LocalSGD",
    "ParameterExchange",
    "Speech",
    "Spoken",
]
