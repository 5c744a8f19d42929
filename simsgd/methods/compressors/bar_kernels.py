# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Which entries are large enough to go, compiled.

Letters: L workers hosted here, n elements of one segment.
"""

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import Kernel, flat, jit, share

_RUN = 64  # entries of which none may reach a bar, looked at together
_HALVINGS = 30  # of the magnitudes among which a bar is sought


def largest_above(x: Tensor, bars: Tensor, k: int) -> Tensor | None:
    """Return where the k entries of largest magnitude in each row of `x` [L, n] are, [L, k].

    They ascend in each row; of equal magnitudes the lowest index is taken. None if fewer than k
    entries of a row reach its bar, of `bars` [L, 1], or far more.
    """
    return _largest_of(x, k, _above, bars.contiguous().view(-1).numpy(), 8 * k + 1024)


def largest_of_all(x: Tensor, k: int) -> Tensor | None:
    """Return the same, without a bar; None if a row has what is no number."""
    return _largest_of(x, k, _of_all)


def _largest_of(x: Tensor, k: int, kernel: Kernel, *numbers: object) -> Tensor | None:
    index = torch.empty(len(x), k, dtype=torch.int64)
    found = np.zeros(len(x), np.bool_)
    share(kernel, len(x), x.shape[1], *flat(x), x.shape[1], *numbers, index.numpy(), found)
    return index if found.all() else None


def reaching(x: Tensor, bar: Tensor, size: int, factor: float = 1, zero: bool = True) -> Tensor:
    """Return where factor * |x| >= bar for rows `x` [L, n], and 0 only if `zero`, [L, n] bool.

    `bar` [L, buckets] is that of `size` consecutive entries each.
    """
    return outstanding(x, None, x, bar, size, factor, zero)


def outstanding(
    ahead: Tensor,
    more: Tensor | None,
    x: Tensor,
    bar: Tensor,
    size: int,
    factor: float = 1,
    zero: bool = False,
) -> Tensor:
    """Return where factor * |ahead + more| >= bar, and `x` is not 0 unless `zero`, [L, n] bool."""
    mask = torch.empty(x.shape, dtype=torch.bool)
    other = ahead if more is None else more
    times = bar.new_full((1,), factor).numpy()
    numbers = more is not None, bar.contiguous().numpy(), size, times, zero
    arrays = *flat(ahead), *flat(other), *flat(x)
    share(_outstanding, x.shape[1], len(x), *arrays, *numbers, mask.view(torch.uint8).numpy())
    return mask


def certain_(r: Tensor, v: Tensor, x: Tensor, alpha: float, zeta: float) -> Tensor:
    """Return where r is certain once `x` is added to it, all [L, n]; v begins again or ages."""
    mask = torch.empty(x.shape, dtype=torch.bool)
    weights = torch.tensor([alpha, zeta], dtype=x.dtype).numpy()
    arrays = *flat(r), *flat(v), *flat(x)
    share(_certain, x.shape[1], len(x), *arrays, weights, mask.view(torch.uint8).numpy())
    return mask


@jit
def _above(first, last, x, step, n, bars, room, index, found):
    place, size = np.empty(room, np.int64), np.empty(room, x.dtype)
    for w in range(first, last):
        row = x[w * step : w * step + n]
        count = _gathered(row, bars[w], place, size)
        found[w] = index.shape[1] <= count <= room
        if found[w]:
            _ranked(place[:count], size[:count], index[w])


@jit
def _of_all(first, last, x, step, n, index, found):
    place, size = np.empty(n, np.int64), np.empty(n, x.dtype)
    k, half = index.shape[1], x.dtype.type(0.5)
    for w in range(first, last):
        row, low = x[w * step : w * step + n], x.dtype.type(0)
        high, count, tries = np.abs(row).max(), _reaching(row, low), 0
        found[w] = count == n
        if not found[w]:
            continue
        while count > k + k // 16 and tries < _HALVINGS:
            bar = low + (high - low) * half
            reach = _reaching(row, bar)
            if reach < k:
                high = bar
            else:
                low, count = bar, reach
            tries += 1
        count = _gathered(row, low, place, size)
        _ranked(place[:count], size[:count], index[w])


@jit
def _reaching(row, bar):
    count = 0
    for i in range(len(row)):
        count += abs(row[i]) >= bar
    return count


@jit
def _gathered(row, bar, place, size):
    """Put where a row reaches a bar, and how far; return how often, or more than there is room."""
    count = 0
    for begin in range(0, len(row), _RUN):
        run = row[begin : min(len(row), begin + _RUN)]
        reach = _reaching(run, bar)
        if count + reach > len(place):
            return len(place) + 1
        if reach:
            for i in range(len(run)):
                if abs(run[i]) >= bar:
                    place[count], size[count] = begin + i, abs(run[i])
                    count += 1
    return count


@jit
def _ranked(place, size, index):
    """Put the places of the largest, of equal ones the first, into `index` [k]."""
    k, chosen = len(index), 0
    least = np.partition(size, len(size) - k)[len(size) - k]
    ties = k - np.count_nonzero(size > least)
    for i in range(len(size)):
        tied = size[i] == least and ties > 0
        if tied or size[i] > least:
            index[chosen] = place[i]
            chosen += 1
            ties -= tied


@jit
def _outstanding(first, last, ahead, a, more, m, x, step, adds, bars, size, factor, zero, mask):
    times = factor[0]
    for w in range(len(mask)):
        begin = first
        while begin < last:
            end = min(last, (begin // size + 1) * size)
            row, bar = ahead[w * a + begin : w * a + end], bars[w, begin // size]
            plus, own = more[w * m + begin : w * m + end], x[w * step + begin : w * step + end]
            out = mask[w, begin:end]
            if adds:
                for i in range(len(row)):
                    large = times * abs(row[i] + plus[i]) >= bar
                    out[i] = large & (zero | (own[i] != 0))
            else:
                for i in range(len(row)):
                    out[i] = (times * abs(row[i]) >= bar) & (zero | (own[i] != 0))
            begin = end


@jit
def _certain(first, last, r, a, v, b, x, step, weights, mask):
    alpha, zeta, nothing = weights[0], weights[1], r.dtype.type(0)
    for w in range(len(mask)):
        row, variance = r[w * a + first : w * a + last], v[w * b + first : w * b + last]
        own, out = x[w * step + first : w * step + last], mask[w, first:last]
        for i in range(len(row)):
            row[i] += own[i]
            certain = abs(row[i]) > np.sqrt(alpha * variance[i])
            out[i] = certain
            variance[i] = nothing if certain else variance[i] * zeta
