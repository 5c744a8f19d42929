"""simsgd: what N data-parallel workers would do, simulated on one device.

>>> import simsgd
>>> simsgd.count(0.001, 1000)
1
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config as Config
    from .recipe import Recipe as Recipe
    from .record import StepRecord as StepRecord
    from .run import Run as Run
    from .settings import SettingError as SettingError
    from .settings import count as count
    from .simulator import Simulator as Simulator
    from .trainer import train as train

__version__ = "0.1.0"

_rooms = {
    "Config": "config",
    "Recipe": "config",
    "Run": "run",
    "SettingError": "settings",
    "Simulator": "simulator",
    "StepRecord": "record",
    "count": "settings",
    "train": "trainer",
}
__all__ = sorted([*_rooms, "__version__"])

if not (Path(__file__).parent / "models").exists():  # a checkout: models/ and regimes/ lie beside
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """Import the room of a public name at its first use, so that `simsgd --help` is instant."""
    if name not in _rooms:
        raise AttributeError(f"module 'simsgd' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_rooms[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
