"""The command line: it reads options, calls one function, prints, and has no logic."""

from . import bench as measuring
from . import bytes_and_list as counting
from . import network as pricing
from . import plot_results as seeing
from . import results as telling
from . import sweep as sweeping
from . import train as training
from .group import main
from .plot_results import plot_results_main

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
