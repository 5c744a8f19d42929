"""Lists what can be chosen by name, each with the first line of its documentation.

Compressors also have their settings, their paper, and whether they are biased and all-reducible.
"""

import inspect
from collections.abc import Callable

from ..catalog import load
from ..catalog import names as file_names
from ..communication.topology import about as topologies
from ..communication.topology import topology
from ..given_object import plain_arguments
from ..gradients import GradientEngine
from ..methods.algorithms import Algorithm
from ..methods.attacks import Attack
from ..methods.compressors import Compressor
from ..methods.describe import details, recipe_text, settings_text
from ..methods.memories import Memory
from ..registry import find, names
from ..settings import SettingError, require, require_kind, unknown
from .data import about

_MOST = 512  # workers whose graphs are measured: a table within seconds
_ROOMS = (
    Compressor,
    Algorithm,
    Attack,
    GradientEngine,
    Memory,
)  # importing them registers all methods
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
    "aggregations": lambda: _methods("aggregation"),
    "attacks": lambda: _methods("attack"),
    "methods": lambda: [(name, recipe_text(find("preset", name))) for name in names("preset")],
    "outer-optimizers": lambda: _methods("outer_optimizer"),
    "engines": lambda: [(name, _first_line(find("engine", name))) for name in names("engine")],
}


@plain_arguments
def list_names(kind: str, workers: int | None = None) -> dict[str, str]:
    """Return the names of a kind, and what each is, in one line or more.

    `kind` is models, regimes, datasets, compressors, memories, algorithms, methods,
    aggregations, attacks, outer-optimizers, topologies or engines.
    Topologies are measured for a number of `workers`. Raises `SettingError` for an unknown kind.
    """
    require_kind("kind", kind, str)
    if kind not in _KINDS:
        raise unknown("kind", kind, _KINDS)
    if workers is None:
        return dict(_KINDS[kind]())
    if kind != "topologies":
        raise SettingError("workers", workers, "only applies to topologies")
    require(workers >= 1, "workers", workers, "must be at least 1")
    require(workers <= _MOST, "workers", workers, f"must be at most {_MOST:,} to be measured")
    return {name: f"{meaning}\n{_measured(name, workers)}" for name, meaning in _KINDS[kind]()}


def _measured(name: str, workers: int) -> str:
    """Return degree, spectral gap and messages a step of a topology, or why it has none."""
    example = {"erdos-renyi": "erdos-renyi:0.3"}.get(name, name)
    if name == "FILE":
        return "as the file says"
    try:
        graph = topology(example, workers, one_way=True)
    except SettingError as wrong:
        return f"not for {workers} workers: {wrong.rule}"
    mixing = graph.at(0)
    gap = "" if graph.varies else f", spectral gap {mixing.spectral_gap:.4f}"
    shown = f"{example}: " if example != name else ""
    messages = int(mixing.degree.sum())
    return f"{shown}degree {mixing.degree_text}{gap}, {messages} messages a step"


def _files(kind: str) -> list[tuple[str, str]]:
    return [(name, _first_line(load(kind, name))) for name in file_names(kind)]


def _methods(kind: str) -> list[tuple[str, str]]:
    methods = [(name, find(kind, name)) for name in names(kind)]
    return [(name, f"{_first_line(m)}\nsettings: {settings_text(m)}") for name, m in methods]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
