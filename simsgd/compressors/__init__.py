"""What a worker can afford to say: one class a method, made by name.

Importing this package registers all of them.
"""

from . import dense, sparsify
from .contract import Compressor, Quantiser

__all__ = ["Compressor", "Quantiser", "dense", "sparsify"]
