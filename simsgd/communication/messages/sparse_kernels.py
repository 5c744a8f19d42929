# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Entries of a row where a mask is true, and sums of them, compiled.

Messages of others may be wrong: no place or count of theirs leads out of an array.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import flat, jit, share

_SOME = 64  # entries looked at together, lest each is where few are chosen


def chosen(mask: Tensor, x: Tensor, clear: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return values [L, k], places [L, k] and counts [L] where `mask` [L, n] is true of `x` [L, n].

    With `clear`, `x` becomes 0 there.
    """
    workers, n = x.shape
    counts = torch.empty(workers, dtype=torch.int64)
    mask_array, pace = flat(mask.view(torch.uint8))
    share(_counted, workers, n, mask_array, pace, n, counts.numpy())
    k = max(1, int(counts.max()))
    values, index = x.new_empty(workers, k), counts.new_empty(workers, k)
    array, step = flat(x)
    target = values.numpy(), index.numpy()
    share(_chosen, workers, n, mask_array, pace, array, step, n, clear, *target)
    return values, index, counts


def added(values: Tensor, index: Tensor, counts: Tensor | None, n: int) -> Tensor:
    """Return the sum over rows of `values` [L, k] at ascending places `index` [L, k], [n]."""
    total = torch.empty(n, dtype=values.dtype)
    workers, k = index.shape
    used = torch.full((workers,), k) if counts is None else counts
    arrays = *flat(values), *flat(index), used.numpy(), total.numpy()
    share(_added, n, max(1, workers * k // n), *arrays)
    return total


def subtract_(values: Tensor, index: Tensor, counts: Tensor, x: Tensor) -> None:
    """Subtract the first counts[w] of `values` [L, k] at their places from `x` [L, n]."""
    arrays = *flat(values), *flat(index), counts.numpy()
    k = min(index.shape[1], values.shape[1])
    share(_subtracted, len(x), k, *flat(x), *arrays, k, x.shape[1])


def clear_(index: Tensor, counts: Tensor, x: Tensor) -> None:
    """Multiply `x` [L, n] by 0 at the first counts[w] places of `index` [L, k]."""
    k = index.shape[1]
    share(_cleared, len(x), k, *flat(x), *flat(index), counts.numpy(), k, x.shape[1])


@jit
def _subtracted(first, last, x, step, values, pace, index, stride, counts, k, n):
    for w in range(first, last):
        for j in range(min(counts[w], k)):
            place = index[w * stride + j]
            if 0 <= place < n:
                x[w * step + place] -= values[w * pace + j]


@jit
def _cleared(first, last, x, step, index, stride, counts, k, n):
    for w in range(first, last):
        for j in range(min(counts[w], k)):
            place = index[w * stride + j]
            if 0 <= place < n:
                x[w * step + place] *= x.dtype.type(0)


@jit
def _counted(first, last, mask, pace, n, counts):
    for w in range(first, last):
        row = mask[w * pace : w * pace + n]
        some = np.int64(0)
        for i in range(n):
            some += row[i]
        counts[w] = some


@jit
def _chosen(first, last, mask, pace, x, step, n, clear, values, index):
    near, far = np.empty(_SOME + 1, x.dtype), np.empty(_SOME + 1, np.int64)
    for w in range(first, last):
        filled = 0
        for begin in range(0, n, _SOME):
            end = min(n, begin + _SOME)
            flags = mask[w * pace + begin : w * pace + end]
            row = x[w * step + begin : w * step + end]
            some = np.uint8(0)
            for i in range(len(flags)):
                some |= flags[i]
            if some == 0:
                continue
            found = 0
            for i in range(len(flags)):  # without a branch, which would be guessed wrongly
                near[found], far[found] = row[i], begin + i
                found += np.int64(flags[i])
            values[w, filled : filled + found] = near[:found]
            index[w, filled : filled + found] = far[:found]
            filled += found
            if clear:
                for i in range(len(flags)):
                    row[i] = row.dtype.type(0) if flags[i] else row[i]
        values[w, filled:] = 0
        index[w, filled:] = n


@jit
def _added(first, last, values, step, index, pace, counts, total):
    total[first:last] = 0
    for w in range(len(counts)):
        places = index[w * pace : w * pace + counts[w]]
        row = values[w * step : w * step + counts[w]]
        for j in range(_before(places, first), _before(places, last)):
            if first <= places[j] < last:
                total[places[j]] += row[j]


@jit
def _before(places, bound):
    """Return how many of the ascending places lie before `bound`."""
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        if places[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low
