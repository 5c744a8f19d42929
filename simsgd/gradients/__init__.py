"""Per-worker gradients: several engines, the same numbers from each.

Importing this package registers all of them.
"""

from . import auto, compiled, loop, onepass, threads, tune, vmap
from .contract import GradientEngine, Gradients

__all__ = [
    "GradientEngine",
    "Gradients",
    "auto",
    "compiled",
    "loop",
    "onepass",
    "threads",
    "tune",
    "vmap",
]
