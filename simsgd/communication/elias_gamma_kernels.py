# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Elias' gamma code of whole numbers, compiled; see `elias_gamma`.

Letters: L workers hosted here, n numbers of a row.
"""

import numpy as np
import torch
from torch import Tensor

from ..compiled_loops import flat, jit, share

_SOME = 64  # numbers looked at together, lest each is where nearly all are 0


def num_bits(numbers: Tensor) -> Tensor:
    """Return the bits of each row's stream, [L] int64, of signed numbers [L, n]."""
    rows, n = numbers.shape
    bits = torch.empty(rows, dtype=torch.int64)
    share(_counted, rows, n, *flat(numbers), n, bits.numpy())
    return bits


def encoded(numbers: Tensor) -> Tensor:
    """Return the stream of signed numbers [n], uint8."""
    row = numbers.unsqueeze(0)
    buffer = torch.empty((int(num_bits(row)) + 7) // 8, dtype=torch.uint8)
    share(_encoded, 1, 1, flat(row)[0], buffer.numpy())
    return buffer


def decoded(buffer: Tensor, n: int) -> Tensor:
    """Return the `n` numbers whose stream this is, [n] int64."""
    numbers = torch.zeros(n, dtype=torch.int64)
    share(_decoded, 1, 1, buffer.contiguous().numpy(), numbers.numpy())
    return numbers


@jit
def _exponent(number):
    """Return floor(log2) of a positive whole number."""
    exponent = np.int64(0)
    for step in (32, 16, 8, 4, 2, 1):
        if number >> np.int64(step) > 0:
            number >>= np.int64(step)
            exponent += step
    return exponent


@jit
def _counted(first, last, numbers, step, n, bits):
    for w in range(first, last):
        row, before, total = numbers[w * step : w * step + n], np.int64(-1), np.int64(0)
        for begin in range(0, n, _SOME):
            part = row[begin : min(n, begin + _SOME)]
            some = part.dtype.type(0)
            for i in range(len(part)):
                some |= part[i]
            if some == 0:
                continue
            for i in range(len(part)):
                if part[i] != 0:
                    place = np.int64(begin + i)
                    size = _exponent(abs(np.int64(part[i])))
                    total += 2 * (_exponent(place - before) + size) + 3
                    before = place
        bits[w] = total


@jit
def _encoded(first, last, numbers, buffer):
    buffer[:] = 0
    at, before = np.int64(0), np.int64(-1)
    for place in range(len(numbers)):
        number = np.int64(numbers[place])
        if number != 0:
            at = _gamma(buffer, at, np.int64(place) - before)
            if number < 0:
                buffer[at >> 3] |= np.uint8(128 >> (at & 7))
            at = _gamma(buffer, at + 1, abs(number))
            before = np.int64(place)


@jit
def _gamma(buffer, at, number):
    """Put the code of a number into bits that are 0, from `at` on; return where it ends."""
    exponent = _exponent(number)
    at += exponent
    for bit in range(exponent, -1, -1):
        if number >> np.int64(bit) & 1:
            buffer[at >> 3] |= np.uint8(128 >> (at & 7))
        at += 1
    return at


@jit
def _decoded(first, last, buffer, numbers):
    at, place, end = np.int64(0), np.int64(-1), np.int64(8 * len(buffer))
    while True:
        distance, at = _read(buffer, at, end)
        if distance == 0:
            return
        place += distance
        if at >= end or place >= len(numbers):
            raise IndexError("a stream ends within a number, or holds more than were sent")
        negative = _bit(buffer, at)
        size, at = _read(buffer, at + 1, end)
        numbers[place] = -size if negative else size


@jit
def _read(buffer, at, end):
    """Return the number whose code begins at `at`, 0 if there is none, and where it ends."""
    zeros = np.int64(0)
    while at < end and _bit(buffer, at) == 0:
        at += 1
        zeros += 1
    number = np.int64(0)
    if at + zeros < end:
        for _ in range(zeros + 1):
            number = number << np.int64(1) | np.int64(_bit(buffer, at))
            at += 1
    return number, at


@jit
def _bit(buffer, at):
    return buffer[at >> 3] >> np.uint8(7 - (at & 7)) & 1
