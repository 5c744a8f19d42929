"""Files that are appended to or replaced as a whole, so that a kill leaves them readable."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast


class NotWritten(OSError):
    """A file that could not be written: the disk is full, read-only, or the folder is gone.

    What the file held before is intact, but for half a row at the end of one that grows.
    """

    exit_code = 5

    def __init__(self, path: Path, wrong: OSError) -> None:
        self.path = path
        reason = wrong.strerror or str(wrong)
        if not path.parent.is_dir():
            reason = f"the folder {path.parent} is gone"
        super().__init__(f"{path} cannot be written: {reason}")
        self.strerror = reason


def append(path: Path, text: str) -> None:
    """Append a text, and have it on disk."""
    with _told(path), path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what `write` writes, in one instant."""
    part = part_of(path)
    with _told(path), part_gone(part):
        fill(part, write)
        os.replace(part, path)
        sync(path.parent)


def fill(part: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file, and have it on disk."""
    with _told(part), part.open("wb") as file:
        patient = _Patient(file)
        write(cast(IO[bytes], patient))
        patient.complain()
        file.flush()
        os.fsync(file.fileno())


def link(source: Path, path: Path) -> None:
    """Replace a file by another that stays, without a copy where the file system can."""
    part = part_of(path)
    with _told(path), part_gone(part):
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:  # a file system without hard links
            fill(part, lambda file: file.write(source.read_bytes()))
        os.replace(part, path)


def sync(folder: Path) -> None:
    """Have the names in a folder on disk, so that a replaced file stays so if the power goes."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems sync folders by themselves only
            os.fsync(number)
    finally:
        os.close(number)


def part_of(path: Path) -> Path:
    """Return where a file is written before it replaces the old one."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def part_gone(part: Path) -> Iterator[None]:
    """Leave no half-written file behind, whatever happens."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say which file could not be written."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as wrong:
        raise NotWritten(path, wrong) from wrong


class _Patient(io.RawIOBase):
    """A file that takes what no longer fits and complains at the end.

    `torch.save` would hide a write that fails halfway behind an error of its archive's own.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._wrong: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, some: bytes) -> int:  # type: ignore[override]
        """Write what fits; after an error, nothing."""
        if self._wrong is None:
            try:
                self._file.write(some)
            except OSError as wrong:
                self._wrong = wrong
        return len(some)

    def complain(self) -> None:
        """Raise the error that a write met."""
        if self._wrong is not None:
            raise self._wrong
