"""simsgd: what N data-parallel workers would do, simulated on one device.

>>> import simsgd
>>> simsgd.count(0.001, 1000)
1
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import ddp as ddp
    from . import methods as methods
    from .bench.advise import advise as advise
    from .bench.benches import bench as bench
    from .bench.consensus import tune_consensus as tune_consensus
    from .communication.transport import RankLost as RankLost
    from .config import Config as Config
    from .methods import adapters as adapters
    from .recipe import Recipe as Recipe
    from .results.atomic_files import NotWritten as NotWritten
    from .results.figures.plot import plot_results as plot_results
    from .results.network_prices import network as network
    from .results.report import report as report
    from .results.results_table import results as results
    from .results.run import Run as Run
    from .results.sweep import Sweep as Sweep
    from .settings import SettingError as SettingError
    from .settings import count as count
    from .simulator.record import StepRecord as StepRecord
    from .simulator.simulator import Simulator as Simulator
    from .simulator.step_bytes import bytes_of as bytes_of
    from .training.choices import list_names as list_names
    from .training.errors import Diverged as Diverged
    from .training.errors import OutOfMemory as OutOfMemory
    from .training.evaluate import evaluate as evaluate
    from .training.generate import generate as generate
    from .training.loop_recorder import Recording as Recording
    from .training.recording import recording as recording
    from .training.signals import Interrupted as Interrupted
    from .training.sweep.sweep import sweep as sweep
    from .training.trainer import train as train
    from .verify.verify import verify as verify

__version__ = "0.1.0"

_PLACES = {  # where each public name is defined
    "Config": "config",
    "Diverged": "training.errors",
    "Interrupted": "training.signals",
    "NotWritten": "results.atomic_files",
    "OutOfMemory": "training.errors",
    "RankLost": "communication.transport",
    "Recipe": "recipe",
    "Recording": "training.loop_recorder",
    "Run": "results.run",
    "SettingError": "settings",
    "Simulator": "simulator.simulator",
    "StepRecord": "simulator.record",
    "Sweep": "results.sweep",
    "advise": "bench.advise",
    "bench": "bench.benches",
    "bytes_of": "simulator.step_bytes",
    "count": "settings",
    "evaluate": "training.evaluate",
    "generate": "training.generate",
    "list_names": "training.choices",
    "network": "results.network_prices",
    "plot_results": "results.figures.plot",
    "recording": "training.recording",
    "report": "results.report",
    "results": "results.results_table",
    "sweep": "training.sweep.sweep",
    "train": "training.trainer",
    "tune_consensus": "bench.consensus",
    "verify": "verify.verify",
}
_MODULES = {"adapters": "methods.adapters", "ddp": "ddp", "methods": "methods"}
__all__ = sorted([*_PLACES, *_MODULES, "__version__"])

if not (Path(__file__).parent / "models").exists():  # a checkout: models/ and regimes/ lie beside
    __path__.append(str(Path(__file__).parents[1]))


if "torch" not in sys.modules:  # which reads once how its threads wait for each other
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # asleep, and not on the cores of others
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # after some microseconds of watching


if not TYPE_CHECKING:  # a type checker is to know the names above, and no others

    def __getattr__(name: str) -> object:
        """Import what a public name stands for at its first use, so that `--help` is instant."""
        if name in _MODULES:
            return importlib.import_module(f".{_MODULES[name]}", __name__)
        if name not in _PLACES:
            raise AttributeError(f"module 'simsgd' has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Lets `simsgd.results`, `verify` and `bench` be functions, beside packages of these names.

    The import system sets a package's name on its parent; it is the function that users want there.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
