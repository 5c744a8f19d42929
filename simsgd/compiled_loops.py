"""Whether inner loops run compiled, by numba, or in the form that torch has; the bits are the same.

The compiled form of a function stands beside it, in a file `*_kernels.py`, which alone imports
numba. It is imported when a tensor comes that is large enough to pay for it, compiled at its first
call, and kept on disk beside the file, or in the user's cache, where either can be written.
SIMSGD_NUMBA=0 leaves all to torch, SIMSGD_NUMBA=1 gives numba small tensors too.

Letters: L workers hosted here, n elements of one segment.
"""

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any, ParamSpec, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_P = ParamSpec("_P")
Kernel = Callable[..., Any]  # of (first, last, *arguments), such as numba compiles
Array = NDArray[np.generic]
VARIABLE = "SIMSGD_NUMBA"
BLOCK = 1024  # elements that a kernel takes at a time, which stay in cache
_ENOUGH = 1 << 16  # elements of one call for which numba is loaded
_SHARE = 1 << 18  # elements of one call that are worth a thread
_TRIES = 4  # a call may fail once for each function whose code cannot be kept on disk
_ALL, _NONE = "1", "0"

_asked: ContextVar[str | None] = ContextVar("asked", default=None)


def form() -> str:
    """Return which form is in use, as "numba 0.61.0" or "torch (numba is not installed)".

    It does not load numba for that.
    """
    if _choice() == _NONE:
        return f"torch ({VARIABLE} is {_NONE})"
    version, why = _numba() if _numba.cache_info().currsize else _installed()
    return f"numba {version}" if version else f"torch ({why})"


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Let numba take tensors of any size, or none, in this thread for a while."""
    token = _asked.set(_ALL if on else _NONE)
    try:
        yield
    finally:
        _asked.reset(token)


def takes(*tensors: Tensor, elements: int = 1) -> bool:
    """Return whether a kernel takes these tensors: plain ones on the CPU, without gaps in a row.

    `elements` is how many are computed for each of theirs.
    """
    choice = _choice()
    if choice == _NONE or not all(_plain(t) for t in tensors):
        return False
    if choice != _ALL and not _numba.cache_info().currsize:
        return sum(t.numel() for t in tensors) * elements >= _ENOUGH and bool(_numba()[0])
    return bool(_numba()[0])


def worth_loading(elements: int) -> bool:
    """Return whether numba, which this imports, serves calls on so many elements of the CPU."""
    return _choice() != _NONE and elements >= _ENOUGH and bool(_numba()[0])


def jit(function: Kernel) -> Kernel:
    """Return the function as numba compiles it: without the GIL, with IEEE arithmetic as it stands.

    Nothing is kept on disk where no directory can be written.
    """
    import numba

    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)


def share(kernel: Kernel, n: int, each: int, *arguments: object, unit: int = 1) -> None:
    """Call kernel(first, last, *arguments) on parts of range(n), which threads share.

    Parts begin at multiples of `unit`. One of the n things takes about `each` elements; torch says
    how many threads there are at most.
    """
    threads = min(torch.get_num_threads(), max(1, n * each // _SHARE), -(-n // unit))
    if threads == 1:
        _called(kernel, 0, n, arguments)
        return
    part = -(-n // unit // threads) * unit
    cuts = [min(n, turn * part) for turn in range(threads)] + [n]
    pool = _pool(threads)
    others = [pool.submit(_called, kernel, *cut, arguments) for cut in pairwise(cuts[1:])]
    _called(kernel, cuts[0], cuts[1], arguments)  # numba lets one thread compile, others wait
    for done in others:
        done.result()


def flat(x: Tensor) -> tuple[Array, int]:
    """Return the memory of rows `x` [L, n] as one array, and the distance from row to row."""
    if x.is_contiguous():
        return x.view(-1).numpy(), x.shape[1]
    length = (len(x) - 1) * x.stride(0) + x.shape[1]
    return x.as_strided((length,), (1,)).numpy(), x.stride(0)


def bits_of(array: Array) -> Array:
    """Return the memory of an array as unsigned whole numbers of the same size."""
    return array.view(np.dtype(f"u{array.itemsize}"))


def _called(
    kernel: Kernel, first: int, last: int, arguments: Sequence[object], tries: int = _TRIES
) -> None:
    try:
        kernel(first, last, *arguments)
    except OSError:  # its code was compiled, and cannot be kept on disk
        if tries == 0:
            raise
        _called(kernel, first, last, arguments, tries - 1)


def _plain(x: Tensor) -> bool:
    return (
        type(x) is Tensor
        and x.device.type == "cpu"
        and x.numel() > 0
        and not x.requires_grad
        and x.dtype not in (torch.float16, torch.bfloat16)
        and (x.stride(-1) == 1 or x.is_contiguous())
    )


def _choice() -> str | None:
    return _asked.get() or os.environ.get(VARIABLE)


@cache
def _numba() -> tuple[str, str]:
    """Return the version of numba, or nothing and why there is none."""
    try:
        import numba
    except ModuleNotFoundError:
        return "", "numba is not installed"
    except Exception as wrong:  # it fails to load beside a numpy or a library that it does not know
        return "", f"numba does not load: {wrong}"
    return numba.__version__, ""


def _installed() -> tuple[str, str]:
    try:
        return importlib.metadata.version("numba"), ""
    except importlib.metadata.PackageNotFoundError:
        return "", "numba is not installed"


def once_a_process(make: Callable[_P, ThreadPoolExecutor]) -> Callable[_P, ThreadPoolExecutor]:
    """Return `make` that keeps each pool it makes until its process forks, which loses threads."""
    kept = cache(make)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=kept.cache_clear)
    return cast(Callable[_P, ThreadPoolExecutor], kept)


@once_a_process
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "simsgd kernels")
