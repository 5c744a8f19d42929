"""What can be chosen by name, each with the first line of its documentation."""

import inspect
from collections.abc import Callable

from . import catalog, compressors, data, exchange, gradients, memory, registry
from .settings import unknown

_registered = {"compressors": "compressor", "memories": "memory", "engines": "engine"}
_rooms = (compressors, exchange, gradients, memory)  # importing them registers their methods


def listing(kind: str) -> list[tuple[str, str]]:
    """Return the names of a kind, and what each is.

    Raises `SettingError` for an unknown kind.
    """
    kinds: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "models": lambda: _files("models"),
        "regimes": lambda: _files("regimes"),
        "datasets": lambda: [(name, data.about(name)) for name in data.names()],
        **{plural: lambda k=one: _methods(k) for plural, one in _registered.items()},  # type: ignore[misc]
    }
    if kind not in kinds:
        raise unknown("kind", kind, kinds)
    return kinds[kind]()


def _files(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(catalog.load(kind, name))) for name in catalog.names(kind)]


def _methods(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(registry.find(kind, name))) for name in registry.names(kind)]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
