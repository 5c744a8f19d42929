"""Groups of runs that a figure draws as one: those that differ in nothing but their seed."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...config_values import identity
from ..run_tables import RunTables


@dataclass(frozen=True)
class Group:
    """Runs that are drawn as one, and their name."""

    name: str
    runs: Sequence[RunTables]


def grouped(runs: Sequence[RunTables], average: bool = True) -> list[Group]:
    """Return groups of runs equal in all but their seed, in the order of their first runs.

    A run is its own group without `average`, and where two of a group have the same seed.
    """
    by_config: dict[object, list[RunTables]] = {}
    for place, run in enumerate(runs):
        config = run.config
        alike = average and "seed" in config
        by_config.setdefault(identity({**config, "seed": 0}) if alike else place, []).append(run)
    groups: list[list[RunTables]] = []
    for members in by_config.values():
        seeds = {run.config.get("seed") for run in members}
        groups.extend([members] if len(seeds) == len(members) else [[run] for run in members])
    return [Group(name, each) for name, each in zip(_names(groups), groups, strict=True)]


def _names(groups: Sequence[Sequence[RunTables]]) -> list[str]:
    """Return a name for each group: of its run, or what its runs' names have in common."""
    names = [_common(runs) or _recipe(runs[0]) for runs in groups]
    if len(set(names)) < len(names):
        names = [str(runs[0].folder) for runs in groups]
    return names


def _common(runs: Sequence[RunTables]) -> str:
    """Return what names have in common before their seeds; nothing if that is but a date."""
    if len(runs) == 1:
        return runs[0].name
    letters = zip(*(run.name for run in runs), strict=False)
    shared = itertools.takewhile(lambda column: len(set(column)) == 1, letters)
    common = "".join(letter for letter, *_ in shared)
    stem = re.sub(r"[-_. ]*(seed|s)?[-_. =]*\d*$", "", common)
    return "" if re.fullmatch(r"[\d\W_]*", stem) else stem


def _recipe(run: RunTables) -> str:
    config = run.config
    prune = config.get("prune")
    method = f"prune {prune:g}" if prune else config.get("compressor") or "dense"
    return f"{PurePath(str(config.get('model'))).stem} {method}, {config.get('workers')} workers"
