"""Conversations between workers: who hears what of what is said.

Importing this package registers all of them.
"""

from .centralized import AllReduce
from .contract import Exchange, GradientExchange, ParameterExchange, Speech, Spoken
from .gossip import Choco, Gossip
from .local import FedAvg, LocalSGD
from .stale import Asynchronous, Butterfly

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
