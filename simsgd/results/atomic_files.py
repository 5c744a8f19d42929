"""Appends to files or replaces them as a whole, so that they stay readable after a kill."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast


class NotWritten(OSError):
    """A file that could not be written: the disk is full, read-only, or the folder is gone.

    The former contents are intact, except for a partial row at the end of a growing file.
    """

    exit_code = 5

    def __init__(self, path: Path, wrong: OSError) -> None:
        self.path = path
        reason = wrong.strerror or str(wrong)
        if not path.parent.is_dir():
            reason = f"there is no folder {path.parent}"
        super().__init__(f"{path} cannot be written: {reason}")
        self.strerror = reason


def append(path: Path, text: str) -> None:
    """Append a text, and wait until it is on disk."""
    with _named(path), path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what `write` writes, atomically."""
    part = part_of(path)
    with _named(path), part_gone(part):
        fill(part, write)
        os.replace(part, path)
        sync(path.parent)


def fill(part: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file, and wait until it is on disk."""
    with _named(part), part.open("wb") as file:
        deferred = _DeferredErrors(file)
        write(cast(IO[bytes], deferred))
        deferred.raise_error()
        file.flush()
        os.fsync(file.fileno())


def link(source: Path, path: Path) -> None:
    """Replace a file by a hard link to another, or by a copy where there are no hard links."""
    part = part_of(path)
    with _named(path), part_gone(part):
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:  # a file system without hard links
            fill(part, lambda file: file.write(source.read_bytes()))
        os.replace(part, path)


def sync(folder: Path) -> None:
    """Write the names in a folder to disk, so that a replaced file survives a power failure."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(number)
    finally:
        os.close(number)


def part_of(path: Path) -> Path:
    """Return where a file is written before it replaces the old one."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def part_gone(part: Path) -> Iterator[None]:
    """Remove a half-written file at the end."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn an error into one that names the file."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as wrong:
        raise NotWritten(path, wrong) from wrong


class _DeferredErrors(io.RawIOBase):
    """A file that accepts writes after an error and raises the error at the end.

    `torch.save` would hide a write that fails halfway behind an error of its archive.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._wrong: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, some: bytes) -> int:  # type: ignore[override]
        """Write, unless an earlier write failed."""
        if self._wrong is None:
            try:
                self._file.write(some)
            except OSError as wrong:
                self._wrong = wrong
        return len(some)

    def raise_error(self) -> None:
        """Raise the error of the write that failed, if one did."""
        if self._wrong is not None:
            raise self._wrong
