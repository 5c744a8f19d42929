# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Codes that few numbers give, compiled: of powers of two, and of bins with their means.

Letters: L workers hosted here, n elements of one segment, k of them given.
"""

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import BLOCK, flat, jit, share
from .row_kernels import folded


def powers_below(x: Tensor, divisor: Tensor, between: Tensor, negative: int) -> Tensor:
    """Return how many of `between` [T], ascending, each of |x| [L, k] / `divisor` [L, 1] exceeds.

    uint8; `negative` is added where x is below zero.
    """
    codes = torch.empty(x.shape, dtype=torch.uint8)
    numbers = divisor.view(-1).numpy(), between.numpy(), negative, codes.numpy()
    share(_powers_below, x.shape[1], len(x), *flat(x), *numbers)
    return codes


def double_sums(x: Tensor, shift: Tensor, entries: Tensor, squares: bool) -> Tensor:
    """Return what the first subtrees of x - shift come to, or of its square, [L, blocks] float64.

    Of rows `x` [L, k] the first `entries` [L, 1] count; `shift` [L, 1] is float64.
    """
    n = x.shape[1]
    sums = torch.empty(len(x), 1 if n <= BLOCK else n // BLOCK + 1, dtype=torch.float64)
    numbers = n, *(t.reshape(-1).numpy() for t in (shift, entries)), squares, sums.numpy()
    share(_double_sums, sums.numel(), min(n, BLOCK), *flat(x), *numbers)
    return sums


def binned(
    x: Tensor, shift: Tensor, width: Tensor, entries: Tensor, bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bin of each of `x` [L, k], uint8, and of each bin [L, bins] sum and number.

    The sums are of x - shift; `shift`, `width` and `entries` are [L, 1] float64.
    """
    codes = torch.empty(x.shape, dtype=torch.uint8)
    totals, counted = (torch.zeros(len(x), bins, dtype=torch.float64) for _ in "tc")
    numbers = [t.reshape(-1).numpy() for t in (shift, width, entries)]
    outputs = codes.numpy(), totals.numpy(), counted.numpy()
    share(_binned, len(x), x.shape[1], *flat(x), *numbers, bins, *outputs)
    return codes, totals, counted


@jit
def _powers_below(first, last, x, step, divisors, between, negative, codes):
    for w in range(len(divisors)):
        row, out = x[w * step + first : w * step + last], codes[w, first:last]
        divisor = divisors[w]
        for i in range(len(row)):
            size, code = abs(row[i]) / divisor, 0
            for j in range(len(between)):
                code += not size <= between[j]
            out[i] = code + negative * (row[i] < 0)


@jit
def _double_sums(first, last, x, step, n, shift, sent, squares, sums):
    _, blocks = sums.shape
    terms = np.empty(BLOCK, np.float64)
    for place in range(first, last):
        w, begin = place // blocks, place % blocks * BLOCK
        row = x[w * step + begin : w * step + max(begin, min(n, begin + BLOCK))]
        for i in range(len(row)):
            off = (np.float64(row[i]) - shift[w]) * np.float64(i < sent[w] - begin)
            terms[i] = off * off if squares else off
        sums[w, place % blocks] = folded(terms, len(row))


@jit
def _binned(first, last, x, step, shift, width, sent, bins, codes, totals, counted):
    most, middle = np.float64(bins - 1), np.float64(bins // 2)
    for w in range(first, last):
        row, out = x[w * step : w * step + codes.shape[1]], codes[w]
        for i in range(len(row)):
            inside = np.float64(i < sent[w])
            off = (np.float64(row[i]) - shift[w]) * inside
            place = np.rint(off / width[w] + middle) * inside
            place = place if place > 0 else 0.0  # NaN goes there too
            code = np.int64(place if place < most else most)
            totals[w, code] += off
            counted[w, code] += inside
            out[i] = code
