"""What workers put on the network, one class a form."""

from .contract import Header, Message, State
from .dense import Dense
from .sparse import Sparse

__all__ = ["Dense", "Header", "Message", "Sparse", "State"]
