"""The command line: it reads options, calls one function, prints, and has no logic."""

from . import counting, measuring, pricing, seeing, sweeping, telling, training
from .group import main
from .seeing import plot_results_main

__all__ = [
    "counting",
    "main",
    "measuring",
    "plot_results_main",
    "pricing",
    "seeing",
    "sweeping",
    "telling",
    "training",
]
