"""Messages, the buffers that workers put on the network: one class a form."""

from .cast import Cast
from .codebook import Codebook
from .contract import Header, Message, State
from .dense import Dense
from .foreign import Foreign
from .joined import Joined
from .levels import Levels
from .lowrank import LowRank
from .places import Places
from .powers_of_two import Powers
from .shared_sparse import SharedSparse
from .signs import Signs
from .sparse import Sparse
from .ternary import Ternary
from .tiled_sparse import TiledSparse

__all__ = [
    "Cast",
    "Codebook",
    "Dense",
    "Foreign",
    "Header",
    "Joined",
    "Levels",
    "LowRank",
    "Message",
    "Places",
    "Powers",
    "SharedSparse",
    "Signs",
    "Sparse",
    "State",
    "Ternary",
    "TiledSparse",
]
