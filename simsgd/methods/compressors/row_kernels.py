# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Peaks and sums of rows, compiled: the trees of `row_reductions`, without what lies between.

Letters: L workers hosted here, n elements of one row.
"""

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import BLOCK, flat, jit, share

PLAIN, SQUARES, DEVIATIONS, MAGNITUDES, BELOW, ABOVE, NEGATIVE = range(7)  # what is added up


def extremes(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the largest magnitudes below and above zero by bucket, [L, buckets] each.

    Buckets are `size` consecutive entries of a row of `x` [L, n], the last maybe fewer.
    """
    array, step = flat(x)
    bits = array.view(np.dtype(f"i{array.itemsize}"))  # as signed numbers, in order of magnitude
    rows, n = x.shape
    blocks = -(-size // BLOCK)
    whole = torch.int32 if x.dtype == torch.float32 else torch.int64
    below, above = (torch.empty(rows, -(-n // size), blocks, dtype=whole) for _ in "ab")
    numbers = bits.dtype.type(torch.iinfo(whole).min), below.numpy(), above.numpy()
    share(_extremes, below.numel(), min(size, BLOCK), bits, step, n, size, *numbers)
    return below.amax(2).view(x.dtype), above.amax(2).view(x.dtype)


def partial_sums(
    x: Tensor,
    size: int,
    kind: int,
    unit: Tensor,
    mean: Tensor | None = None,
    entries: Tensor | None = None,
) -> Tensor:
    """Return what a bucket's first subtrees come to, [L, buckets, blocks], of rows `x` [L, n].

    `kind` says what of x / unit is added up; `unit` is [L, buckets], `mean` and `entries` [L, 1]
    where there is one bucket. Zeros fill the last bucket.
    """
    array, step = flat(x)
    rows, n = x.shape
    blocks = 1 if size <= BLOCK else size // BLOCK + 1
    sums = x.new_empty(rows, -(-n // size), blocks)
    off = torch.zeros_like(unit) if mean is None else mean
    last = torch.full((rows,), n) if entries is None else entries.view(-1).long()
    numbers = unit.contiguous().numpy(), off.contiguous().view(-1).numpy(), last.numpy()
    each = min(size, BLOCK)
    share(_partial, sums.numel(), each, array, step, n, size, kind, *numbers, sums.numpy())
    return sums


@jit
def _extremes(first, last, bits, step, n, size, flip, below, above):
    _, buckets, blocks = below.shape
    for place in range(first, last):
        w, b, part = place // blocks // buckets, place // blocks % buckets, place % blocks
        begin, end = b * size + part * BLOCK, min(n, (b + 1) * size)
        row = bits[w * step + begin : w * step + max(begin, min(end, begin + BLOCK))]
        least, most = below.dtype.type(0), above.dtype.type(0)
        for i in range(len(row)):
            most = max(most, row[i])
            least = max(least, row[i] ^ flip)
        below[w, b, part], above[w, b, part] = least, most


@jit
def _partial(first, last, x, step, n, size, kind, units, means, lasts, sums):
    _, buckets, blocks = sums.shape
    terms = np.empty(BLOCK, x.dtype)
    for place in range(first, last):
        w, b, part = place // blocks // buckets, place // blocks % buckets, place % blocks
        begin, end = b * size + part * BLOCK, min(n, (b + 1) * size)
        row = x[w * step + begin : w * step + max(begin, min(end, begin + BLOCK))]
        _load(row, terms, kind, units[w, b], means[w], lasts[w] - begin)
        length = min(BLOCK, size - part * BLOCK)
        terms[len(row) : length] = 0
        sums[w, b, part] = folded(terms, length)


@jit
def _load(row, terms, kind, unit, mean, entries):
    zero = row.dtype.type(0)
    if kind == PLAIN:
        for i in range(len(row)):
            terms[i] = row[i] / unit
    elif kind == SQUARES:
        for i in range(len(row)):
            terms[i] = (row[i] / unit) * (row[i] / unit)
    elif kind == DEVIATIONS:
        for i in range(len(row)):
            off = (row[i] / unit - mean) * row.dtype.type(i < entries)
            terms[i] = off * off
    elif kind == MAGNITUDES:
        for i in range(len(row)):
            terms[i] = abs(row[i]) / unit
    elif kind == BELOW:
        for i in range(len(row)):
            terms[i] = (zero if row[i] > zero else -row[i]) / unit
    elif kind == ABOVE:
        for i in range(len(row)):
            terms[i] = (zero if row[i] < zero else row[i]) / unit
    else:
        for i in range(len(row)):
            terms[i] = row.dtype.type(row[i] < zero)


@jit
def folded(terms, n):
    """Return the sum of the first n terms, which it overwrites: the tree of `row_sum`."""
    if n == 0:
        return terms.dtype.type(0)
    half = BLOCK // 2
    while n > 1:
        while half >= n:
            half //= 2
        low, high = terms[: n - half], terms[half:n]
        for i in range(len(low)):
            low[i] += high[i]
        n = half
    return terms[0]
