"""simsgd: what N data-parallel workers would do, simulated on one device.

>>> import simsgd
>>> simsgd.count(0.001, 1000)
1
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config as Config
    from .recipe import Recipe as Recipe
    from .results.run import Run as Run
    from .results.sweep import Sweep as Sweep
    from .settings import SettingError as SettingError
    from .settings import count as count
    from .simulator.record import StepRecord as StepRecord
    from .simulator.simulator import Simulator as Simulator
    from .training.sweep.sweep import sweep as sweep
    from .training.trainer import train as train

__version__ = "0.1.0"

_PLACES = {  # where each public name is defined
    "Config": "config",
    "Recipe": "recipe",
    "Run": "results.run",
    "SettingError": "settings",
    "Simulator": "simulator.simulator",
    "StepRecord": "simulator.record",
    "Sweep": "results.sweep",
    "count": "settings",
    "sweep": "training.sweep.sweep",
    "train": "training.trainer",
}
__all__ = sorted([*_PLACES, "__version__"])

if not (Path(__file__).parent / "models").exists():  # a checkout: models/ and regimes/ lie beside
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """Import what a public name stands for at its first use, so that `simsgd --help` is instant."""
    if name not in _PLACES:
        raise AttributeError(f"module 'simsgd' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Lets `simsgd.results` and `simsgd.verify` be functions, beside packages of these names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
