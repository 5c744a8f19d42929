"""Keeps what was read from files until one of them changes."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

_SETTLED = 2_000_000_000  # nanoseconds after which another change would change a file's time too

Made = TypeVar("Made")
_Stamp = tuple[int, int, int] | None  # time of change in nanoseconds, size, inode; None: no file


class KeptFiles:
    """Remembers what was made of files, by name, for as long as these stay as they are.

    A file is another one when its time, its size or its inode is another. Of a file that changed
    less than two seconds ago nothing is kept: it could change again within the same tick of the
    file system's clock.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[_Stamp], object]] = {}

    def of(self, name: str, paths: Sequence[Path], make: Callable[[], Made]) -> Made:
        """Return what `make` returns, or returned when the files were last as they are now."""
        stamps = [_stamp(path) for path in paths]
        if name in self._kept and self._kept[name][0] == stamps:
            return cast(Made, self._kept[name][1])
        made = make()
        self._kept.pop(name, None)
        if all(map(_is_settled, stamps)):
            self._kept[name] = stamps, made
        return made


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_settled(stamp: _Stamp) -> bool:
    return stamp is None or stamp[0] < time.time_ns() - _SETTLED
