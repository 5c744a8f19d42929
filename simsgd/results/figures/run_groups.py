"""Groups of runs that a figure draws as one: those that differ in nothing but their seed."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config_values import identity
from ...settings import SettingError
from ..run_folders import natural_key
from ..run_tables import RunTables
from .group_names import group_names
from .style import NUM_LOOKS


@dataclass(frozen=True)
class Group:
    """Runs that are drawn as one, and their name."""

    name: str
    runs: Sequence[RunTables]
    place: int = 0  # of its look among all that there are


def grouped(runs: Sequence[RunTables], average: bool = True) -> list[Group]:
    """Return groups of runs equal in all but their seed, in the order of their first runs.

    A run is its own group without `average`, and where two of a group have the same seed.
    """
    by_config: dict[object, list[RunTables]] = {}
    for run in runs:
        by_config.setdefault(_key(run, average), []).append(run)
    groups: list[list[RunTables]] = []
    for members in by_config.values():
        seeds = {run.config.get("seed") for run in members}
        groups.extend([members] if len(seeds) == len(members) else [[run] for run in members])
    names, places = group_names(groups), _places([runs[0] for runs in groups], average)
    return [Group(*each) for each in zip(names, groups, places, strict=True)]


def _key(run: RunTables, average: bool) -> object:
    """Return what runs of one group have in common."""
    config = run.config
    if not average or "seed" not in config:
        return run.folder.resolve()
    return identity({**config, "seed": 0})


def _places(runs: Sequence[RunTables], average: bool) -> list[int]:
    """Return a place for each group's first run: that of its group among all of its folder.

    So a method has the same color in every figure of a folder. Where two would look the same, the
    places are those in the figure.
    """
    keys = [_key(run, average) for run in runs]
    every: dict[object, int] = {}
    for run in _siblings(runs):
        with contextlib.suppress(SettingError):  # a neighbor that is damaged
            every.setdefault(_key(run, average), len(every))
    places = [every.get(key, 0) for key in keys]
    if len({place % NUM_LOOKS for place in places}) < len(places):
        return list(range(len(runs)))
    return places


def _siblings(runs: Iterable[RunTables]) -> list[RunTables]:
    """Return all runs of the folders in which these lie, in natural order."""
    folders = dict.fromkeys(run.folder.resolve().parent for run in runs)
    children = [child for folder in folders for child in _children(folder)]
    return [RunTables(child) for child in children if (child / "config.json").is_file()]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda child: natural_key(child.name))
