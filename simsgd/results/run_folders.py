"""Finds the runs in folders, at any depth and in natural order: seed2 before seed10."""

import functools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..settings import SettingError, require_kind
from .run_tables import RunTables

RunPath = RunTables | Path | str  # a run, a run folder, or a folder that holds some
RunPaths = RunPath | Iterable[RunPath]


def find_runs(
    places: RunPaths, with_epochs: bool = False, with_steps: bool = False
) -> list[RunTables]:
    """Return the runs of run folders and of folders that hold some at any depth, each once.

    `places` are one or several; runs that are already opened are taken as they are.
    With `with_epochs`, those found inside a folder count only if an epoch of theirs has ended,
    unless that is true of none; so with the folders that `verify` leaves, wherever they are found.
    Those inside a folder that are damaged are named on stderr and left out, `with_steps` also those
    of which steps.csv alone is. Raises `SettingError` for a place without runs, and for one whose
    runs are all damaged.
    """
    found: dict[Path, RunTables] = {}
    for place in several(places):
        if not isinstance(place, RunTables):
            require_kind("run", place, str, Path)
        for run in _runs_of(place, with_epochs, with_steps):
            found.setdefault(run.folder.resolve(), run)
    if not found:
        raise SettingError("run", None, "must name at least one run folder")
    drawn = [run for run in found.values() if not (with_epochs and is_verification(run))]
    return drawn or list(found.values())


def several(places: RunPaths) -> list[RunPath]:
    """Return places as a list. Raises `SettingError` for what is neither a place nor several."""
    if isinstance(places, RunTables | Path | str):
        return [places]
    if not isinstance(places, Iterable) or isinstance(places, bytes | Mapping):
        rule = f"must be a run, a path or several, not {type(places).__name__}"
        raise SettingError("run", places, rule)
    return list(places)


def by_name(runs: Iterable[RunTables]) -> dict[str, RunTables]:
    """Return runs by their names, or by their folders where two have the same name."""
    listed = list(runs)
    alike = len({run.name for run in listed}) < len(listed)
    return {str(run.folder) if alike else run.name: run for run in listed}


def natural_key(text: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts the numbers in texts as numbers.

    >>> sorted(["seed10", "seed2", "lr-0.01", "lr-1e-05", "lr-0.001"], key=natural_key)
    ['lr-1e-05', 'lr-0.001', 'lr-0.01', 'seed2', 'seed10']
    """
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]


def _runs_of(place: RunPath, with_epochs: bool, with_steps: bool) -> Sequence[RunTables]:
    if isinstance(place, RunTables):
        return [place]
    folder = Path(place)
    if not folder.exists():
        raise SettingError("run", str(place), "does not exist")
    if (folder / "config.json").is_file():
        return [RunTables(folder)]
    runs = [RunTables(inside) for inside in _outermost_runs(folder)]
    if not runs:
        rule = "is not a run folder and holds none (no config.json)"
        raise SettingError("run", str(place), rule)
    runs = _sound(runs, with_steps)
    ended = [run for run in runs if len(run.evaluations)] if with_epochs else []
    return ended or runs


def is_verification(run: RunTables) -> bool:
    """Return whether `verify` made a run, which has steps but no epochs."""
    return run.config.get("verified_steps") is not None and run.evaluations.empty


def _sound(runs: Sequence[RunTables], with_steps: bool) -> list[RunTables]:
    """Return the runs whose files can be read, and name the others on stderr.

    Raises the `SettingError` of the first if none can.
    """
    sound, wrong = [], []
    for run in runs:
        try:
            _read(run, with_steps)
        except SettingError as error:
            wrong.append(error)
        else:
            sound.append(run)
    if not sound:
        raise wrong[0]
    for left_out in wrong:
        _name(f"simsgd: left out: {left_out}")
    return sound


def _read(run: RunTables, with_steps: bool) -> None:
    """Raise `SettingError` for a run whose config, evaluations or steps cannot be read."""
    run.seconds  # noqa: B018, for which config.json and both tables of evaluations are read
    if with_steps:
        run.mean_bytes  # noqa: B018


@functools.cache
def _name(text: str) -> None:
    """Print a line once, however often runs are looked for."""
    print(text, file=sys.stderr)


def _outermost_runs(folder: Path) -> list[Path]:
    """Return the run folders below a folder, without those inside another."""
    inside = {path.parent for path in folder.rglob("config.json") if path.is_file()}
    outermost = [run for run in inside if inside.isdisjoint(run.parents)]
    return sorted(outermost, key=lambda path: natural_key(str(path)))
