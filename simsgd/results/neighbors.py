"""The runs that lie beside others, in their folders and in those beside these."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .run_folders import natural_key


def around(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that hold these, where they hold nothing but runs, else the same."""
    wide = {f.parent if _holds_runs_alone(f.parent) else f: None for f in folders}
    return [folder for folder in wide if not any(above in wide for above in folder.parents)]


def runs_in(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the run folders in some folders, and in those within that hold nothing but runs.

    They come in natural order, folder by folder.
    """
    for folder in folders:
        for inside in _folders_in(folder):
            if _is_run(inside):
                yield inside
            elif _holds_runs_alone(inside):
                yield from runs_in([inside])


def _holds_runs_alone(folder: Path) -> bool:
    """Return whether the folders in a folder are runs, or hold nothing but runs themselves.

    Files do not matter, and neither do folders that hold only files, such as one of figures.
    """
    if folder.is_symlink():
        return False
    inside = [each for each in _folders_in(folder) if _is_run(each) or _folders_in(each)]
    return len(inside) > 0 and all(_is_run(each) or _holds_runs_alone(each) for each in inside)


def _is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, in natural order; none of one that may not be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
        return [folder / name for name in sorted(names, key=natural_key)]
    return []
