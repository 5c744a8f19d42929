"""Groups of runs that a figure draws as one: those that differ in nothing but their seed."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...settings import SettingError, unknown
from ..neighbors import around, runs_in
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
    known = {name for group in groups for name in _names_of(group)}
    for name in names:
        if name not in known:
            raise unknown(setting, name, [group.name for group in groups])


def _key(run: RunTables, average: bool) -> object:
    """Return what runs of one group have in common."""
    if not average or "seed" not in run.config:
        return run.folder.resolve()
    return run.identity_but_seed


def _places(runs: Sequence[RunTables], drawn: Sequence[RunTables], average: bool) -> list[int]:
    """Return a place for each group's first run: that of its group among all of its folder.

    So a method has the same color in every figure of a folder, and of a folder that holds nothing
    but folders of runs if all of these together have looks enough. Where two would look the same,
    the places are those in the figure.
    """
    keys = [_key(run, average) for run in runs]
    known = {run.folder.resolve(): run for run in drawn}
    folders = list(dict.fromkeys(run.folder.resolve().parent for run in runs))
    for wide in (around(folders), folders):
        beside = (known.get(path) or RunTables(path) for path in runs_in(wide))
        every = _numbered(beside, keys, average)
        if len(every) <= NUM_LOOKS:
            break
    places = [every.get(key, 0) for key in keys]
    if len({place % NUM_LOOKS for place in places}) < len(places):
        return list(range(len(runs)))
    return places


def _numbered(
    beside: Iterable[RunTables], keys: Sequence[object], average: bool
) -> dict[object, int]:
    """Return a place for each group of runs, of more than there are looks as far as `keys` need."""
    every: dict[object, int] = {}
    for run in beside:
        with contextlib.suppress(SettingError):  # a neighbor that is damaged
            every.setdefault(_key(run, average), len(every))
        if len(every) > NUM_LOOKS and all(key in every for key in keys):
            break
    return every
