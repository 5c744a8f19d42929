"""The command line: it reads options, calls one function, prints, and has no logic.

A command is a file here, named for it and found by itself.
"""

import importlib
import pkgutil

from .group import main
from .plot_results import plot_results_main

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)

__all__ = ["main", "plot_results_main"]
