"""Files that are appended to or replaced as a whole, so that a kill leaves them readable."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def append(path: Path, text: str) -> None:
    """Append a text, and have it on disk."""
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what `write` writes, in one instant."""
    part = part_of(path)
    try:
        fill(part, write)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def fill(part: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file, and have it on disk."""
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def link(source: Path, path: Path) -> None:
    """Replace a file by another that stays, without a copy where the file system can."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:  # a file system without hard links
        fill(part, lambda file: file.write(source.read_bytes()))
    os.replace(part, path)


def part_of(path: Path) -> Path:
    """Return where a file is written before it replaces the old one."""
    return path.with_name(f".{path.name}.part")
