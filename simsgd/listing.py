"""What can be chosen by name, each with the first line of its documentation.

Of compressors also the settings, the paper, and whether they are biased and ride an all-reduce.
"""

import inspect
from collections.abc import Callable

from .catalog import load
from .catalog import names as file_names
from .compressors import Compressor
from .data import about
from .details import details
from .exchange import Exchange
from .gradients import GradientEngine
from .memory import Memory
from .registry import find, names
from .settings import unknown

_ROOMS = (Compressor, Exchange, GradientEngine, Memory)  # importing them registers all methods
_KINDS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "models": lambda: _files("models"),
    "regimes": lambda: _files("regimes"),
    "datasets": lambda: list(about().items()),
    "compressors": lambda: [
        (name, details(find("compressor", name))) for name in names("compressor")
    ],
    "memories": lambda: _methods("memory"),
    "engines": lambda: _methods("engine"),
}


def listing(kind: str) -> list[tuple[str, str]]:
    """Return the names of a kind, and what each is, in one line or more.

    Raises `SettingError` for an unknown kind.
    """
    if kind not in _KINDS:
        raise unknown("kind", kind, _KINDS)
    return _KINDS[kind]()


def _files(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(load(kind, name))) for name in file_names(kind)]


def _methods(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(find(kind, name))) for name in names(kind)]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
