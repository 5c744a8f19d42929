"""Keeps freed memory in the heap of the C library, where that is glibc."""

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MOST_KEPT = (1 << 31) - 1  # bytes, all that an int can say
_LARGEST = 1 << 25  # bytes, the most that may come from the heap
_GAPS, _SHARE = 1 << 24, 0.08  # bytes, and part of what is held, that gaps took in six runs


def keep() -> None:
    """Keep memory that is freed for the next step, which takes as much again.

    Otherwise tensors of some MiB go back to the system at every step, and each page of the next
    ones is cleared and mapped anew.
    """
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


def trim() -> None:
    """Give memory that is free back to the system."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def gaps(held: int) -> int:
    """Return about how many bytes gaps between tensors take, where so many are held.

    Small tensors leave them in the heap from step to step; docs/performance.md has the runs.
    """
    return 0 if _library() is None else _GAPS + round(_SHARE * held)


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
