"""Groups of runs that a figure draws as one: those that differ in nothing but their seed."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...settings import SettingError, unknown
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
    names, places = group_names(groups), _places([m[0] for m in groups], runs, average)
    return [Group(*each) for each in zip(names, groups, places, strict=True)]


def labeled(groups: Sequence[Group], labels: Mapping[str, str]) -> list[Group]:
    """Return groups with the labels given for their names, or for the names of their runs."""
    _check_names("labels", labels, groups)
    texts = [[labels[name] for name in _names_of(group) if name in labels] for group in groups]
    return [
        replace(group, name=text[0]) if text else group
        for group, text in zip(groups, texts, strict=True)
    ]


def ordered(groups: Sequence[Group], order: Sequence[str]) -> list[Group]:
    """Return groups in an order of their names, or of their runs' names; the others follow."""
    _check_names("order", order, groups)

    def rank(group: Group) -> int:
        return min((order.index(n) for n in _names_of(group) if n in order), default=len(order))

    return sorted(groups, key=rank)


def _names_of(group: Group) -> list[str]:
    return [group.name, *(run.name for run in group.runs)]


def _check_names(setting: str, names: Iterable[str], groups: Sequence[Group]) -> None:
    known = {name: None for group in groups for name in _names_of(group)}
    for name in names:
        if name not in known:
            raise unknown(setting, name, known)


def _key(run: RunTables, average: bool) -> object:
    """Return what runs of one group have in common."""
    if not average or "seed" not in run.config:
        return run.folder.resolve()
    return run.identity_but_seed


def _places(runs: Sequence[RunTables], drawn: Sequence[RunTables], average: bool) -> list[int]:
    """Return a place for each group's first run: that of its group among all of its folder.

    So a method has the same color in every figure of a folder, and of a folder that holds nothing
    but sweeps if all of these together have looks enough. Where two would look the same, the places
    are those in the figure.
    """
    keys = [_key(run, average) for run in runs]
    folders = list(dict.fromkeys(run.folder.resolve().parent for run in runs))
    every = _numbered(_sweeps_beside(folders), drawn, average)
    if len(every) > NUM_LOOKS or any(key not in every for key in keys):
        every = _numbered(folders, drawn, average)
    places = [every.get(key, 0) for key in keys]
    if len({place % NUM_LOOKS for place in places}) < len(places):
        return list(range(len(runs)))
    return places


def _numbered(
    folders: Sequence[Path], drawn: Sequence[RunTables], average: bool
) -> dict[object, int]:
    """Return the place of each group among all runs of some folders."""
    every: dict[object, int] = {}
    for run in _runs_in(folders, drawn):
        with contextlib.suppress(SettingError):  # a neighbor that is damaged
            every.setdefault(_key(run, average), len(every))
    return every


def _sweeps_beside(folders: Sequence[Path]) -> list[Path]:
    """Return all sweeps of the folders that hold these and no others, in natural order."""
    found = []
    for above in dict.fromkeys(folder.parent for folder in folders):
        with contextlib.suppress(OSError):  # a folder that may not be read
            beside = [c for c in _children(above) if c.is_dir() and not c.name.startswith(".")]
            found += beside if all((c / "sweep.json").is_file() for c in beside) else []
    return found


def _runs_in(folders: Sequence[Path], drawn: Sequence[RunTables]) -> list[RunTables]:
    """Return all runs of some folders, in natural order; those that are `drawn` are opened."""
    children = [child for folder in folders for child in _children(folder)]
    known = {run.folder.resolve(): run for run in drawn}
    return [
        known.get(child) or RunTables(child)
        for child in children
        if (child / "config.json").is_file()
    ]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda child: natural_key(child.name))
