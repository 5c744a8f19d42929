"""How workers talk: one class an algorithm, made by name."""

from .centralized import AllReduce
from .contract import Exchange

__all__ = ["AllReduce", "Exchange"]
