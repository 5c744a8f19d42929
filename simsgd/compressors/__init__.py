"""What a worker can afford to say: one class a method, made by name.

Importing this package registers all of them.
"""

from . import dense, sparsify
from .contract import Compressor

__all__ = ["Compressor", "dense", "sparsify"]
