# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Random numbers of `keyed_random`, compiled.

Letters: L workers hosted here, n numbers of a stream.
"""

import numba
import numpy as np
import torch
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

from .compiled_loops import jit, share

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(keys: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Return `n` numbers of each stream of `keys` [L], uniform in [0, 1), [L, n]."""
    numbers = torch.empty(len(keys), n, dtype=dtype)
    share(_uniform, n, len(keys), streams(keys), numbers.numpy())
    return numbers


def streams(keys: Tensor) -> NDArray[np.uint64]:
    """Return the keys [L] as kernels take them."""
    return keys.numpy().view(np.uint64)


@jit
def mixed(z):
    """Return SplitMix64's output for a state."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def unit(bits, like):
    """Return 64 random bits as a number in [0, 1) of the dtype of `like`, within a kernel."""
    raise NotImplementedError


@overload(unit)
def _(bits, like):
    narrow, wide = np.float32(2.0**-24), 2.0**-53
    if like == numba.float32:
        return lambda bits, like: np.float32(np.int32(bits >> np.uint64(40))) * narrow
    return lambda bits, like: np.float64(np.int64(bits >> np.uint64(11))) * wide


@jit
def _uniform(first, last, keys, numbers):
    for w in range(len(keys)):
        row, start = numbers[w, first:last], keys[w] + np.uint64(first + 1) * GOLDEN
        for i in range(len(row)):
            row[i] = unit(mixed(start + np.uint64(i) * GOLDEN), row[i])
