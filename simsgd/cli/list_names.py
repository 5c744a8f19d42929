"""What can be chosen by name, each with the first line of its documentation.

Of compressors also the settings, the paper, and whether they are biased and ride an all-reduce.
"""

import inspect
from collections.abc import Callable

from ..catalog import load
from ..catalog import names as file_names
from ..communication.topology import about as topologies
from ..communication.topology import topology
from ..gradients import GradientEngine
from ..methods.algorithms import Algorithm
from ..methods.compressors import Compressor
from ..methods.memories import Memory
from ..registry import find, names
from ..settings import SettingError, require, unknown
from ..training.data import about
from .describe import details

_ROOMS = (Compressor, Algorithm, GradientEngine, Memory)  # importing them registers all methods
_KINDS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "models": lambda: _files("models"),
    "regimes": lambda: _files("regimes"),
    "datasets": lambda: list(about().items()),
    "compressors": lambda: [
        (name, details(find("compressor", name))) for name in names("compressor")
    ],
    "memories": lambda: _methods("memory"),
    "topologies": lambda: list(topologies().items()),
    "algorithms": lambda: _methods("algorithm"),
    "engines": lambda: _methods("engine"),
}


def listing(kind: str, workers: int | None = None) -> list[tuple[str, str]]:
    """Return the names of a kind, and what each is, in one line or more.

    Topologies for a number of `workers` are measured. Raises `SettingError` for an unknown kind.
    """
    if kind not in _KINDS:
        raise unknown("kind", kind, _KINDS)
    rule = "has a meaning for topologies only"
    require(workers is None or kind == "topologies", "workers", workers, rule)
    require(workers is None or workers >= 1, "workers", workers, "must be at least 1")
    return (
        _KINDS[kind]()
        if workers is None
        else [(name, f"{meaning}\n{_measured(name, workers)}") for name, meaning in _KINDS[kind]()]
    )


def _measured(name: str, workers: int) -> str:
    """Return degree, spectral gap and messages a step of a topology, or why it has none."""
    example = {"erdos-renyi": "erdos-renyi:0.3"}.get(name, name)
    if name == "FILE":
        return "as the file says"
    try:
        graph = topology(example, workers)
    except SettingError as wrong:
        return f"not for {workers} workers: {wrong.rule}"
    degrees = graph.at(0).degree
    least, most = int(degrees.min()), int(degrees.max())
    gap = "" if graph.varies else f", spectral gap {graph.at(0).spectral_gap:.4f}"
    said = f"{example}: " if example != name else ""
    return (
        f"{said}degree {least if least == most else f'{least} to {most}'}{gap}, "
        f"{int(degrees.sum())} messages a step"
    )


def _files(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(load(kind, name))) for name in file_names(kind)]


def _methods(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(find(kind, name))) for name in names(kind)]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
