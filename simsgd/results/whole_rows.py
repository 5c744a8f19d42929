"""Opens a table up to the end of its last whole row, without reading all of it at once."""

import io
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BLOCK = 1 << 16  # bytes in which the last end of a row is looked for, from the end on


def open_whole_rows(path: Path) -> IO[bytes] | None:
    """Return a file that ends with the last whole row, None if there is no such row.

    A kill, or a look meanwhile, may leave half a row behind it.
    """
    file = path.open("rb")
    size = _end_of_rows(file)
    if size == 0:
        file.close()
        return None
    return io.BufferedReader(_Beginning(file, size), _BLOCK)


class _Beginning(io.RawIOBase):
    """The first `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        file.seek(0)
        self._file, self._left = file, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read into a buffer as much as it holds, and return how much that was."""
        view = memoryview(buffer)
        some = self._file.read(min(len(view), self._left))
        view[: len(some)] = some
        self._left -= len(some)
        return len(some)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _end_of_rows(file: IO[bytes]) -> int:
    """Return how many bytes of a file its whole rows take."""
    start = file.seek(0, io.SEEK_END)
    while start > 0:
        end, start = start, max(0, start - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
    return 0
