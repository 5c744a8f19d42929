"""Refuses a folder that is no run, and tells which runs it holds."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from ..settings import SettingError
from ..units import alternatives

_SHOWN = 3  # runs in a message
_MOST = 2000  # folders that are looked through


def require_run(folder: Path, setting: str) -> None:
    """Raise `SettingError` unless `folder` is a run folder."""
    refuse_folder_of_runs(folder, setting)
    if not (folder / "config.json").is_file():
        there = folder.exists()
        rule = "is not a run folder (no config.json in it)" if there else "does not exist"
        raise SettingError(setting, str(folder), rule)


def refuse_folder_of_runs(folder: Path, setting: str) -> None:
    """Raise `SettingError` for a folder that is no run but holds some, of which one is needed."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return
    inside = sorted(str(run) for run in itertools.islice(_runs(folder), _SHOWN))
    if inside:
        fix = f"give one, such as {alternatives(inside)}"
        raise SettingError(setting, str(folder), "is no run but a folder of runs", fix)


def _runs(folder: Path) -> Iterator[Path]:
    """Yield run folders below a folder, those inside another not."""
    for place, below, _ in itertools.islice(os.walk(folder), _MOST):
        below.sort()
        if (Path(place) / "config.json").is_file():
            below.clear()
            yield Path(place)
