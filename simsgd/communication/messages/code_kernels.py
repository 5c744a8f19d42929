# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""What codes stand for, compiled: stored, taken away, or added up over workers, block by block.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import BLOCK, Kernel, flat, jit, share

_STORE, _SUBTRACT, _ADD = range(3)
Decoder = tuple[Kernel, Sequence[object]]  # a kernel, and what it knows of the codes


def multiples(codes: Tensor, scales: Tensor, bucket: int, num_levels: int) -> Decoder:
    """Return the decoder of codes [L, n] / num_levels * scales [L, buckets]; 0 levels: of 1."""
    levels = scales.new_full((1,), num_levels or 1)
    own = scales.contiguous().numpy(), bucket, levels.numpy(), num_levels > 0
    return _multiples, (*flat(codes), *own)


def halves(codes: Tensor, negative: Tensor, other: Tensor, counts: Tensor | None) -> Decoder:
    """Return the decoder of codes [L, n] that say which of two values [L, 1] of its row it is.

    Those behind counts[w] stand for 0.
    """
    ends = torch.full((len(codes),), codes.shape[1]) if counts is None else counts
    rows = [t.expand(len(codes), 1).contiguous().view(-1).numpy() for t in (negative, other)]
    return _halves, (*flat(codes.view(torch.uint8)), *rows, ends.numpy())


def looked_up(codes: Tensor, numbers: Tensor, counts: Tensor | None) -> Decoder:
    """Return the decoder of codes [L, n] that say which of its row's `numbers` [L, codes] it is.

    Those behind counts[w] stand for 0.
    """
    ends = torch.full((len(codes),), codes.shape[1]) if counts is None else counts
    return _looked_up, (*flat(codes), numbers.contiguous().numpy(), ends.numpy())


def powers(codes: Tensor, dtype: torch.dtype, least: int) -> Decoder:
    """Return the decoder of codes [L, n] of a sign bit and 7 bits of exponent, 1 for 2^least."""
    fraction, bias = (23, 127) if dtype == torch.float32 else (52, 1023)
    form = [bias + least - 1, fraction, 8 * dtype.itemsize - 1]
    return _powers, (*flat(codes), np.array(form, f"u{dtype.itemsize}"))


def stored(decoder: Decoder, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return what the codes of this shape stand for, [L, n]."""
    dense = torch.empty(shape, dtype=dtype)
    _run(decoder, _STORE, shape, dense)
    return dense


def subtract_(decoder: Decoder, x: Tensor) -> None:
    """Subtract what the codes stand for from `x` [L, n], in place."""
    _run(decoder, _SUBTRACT, x.shape, x)


def added(decoder: Decoder, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the sum over workers of what the codes stand for, one after the other, [n]."""
    total = torch.empty(1, shape[1], dtype=dtype)
    _run(decoder, _ADD, shape, total)
    return total[0]


def _run(decoder: Decoder, mode: int, shape: torch.Size, x: Tensor) -> None:
    (kernel, known), (rows, n) = decoder, shape
    share(kernel, n, rows, rows, mode, *flat(x), *known)


@jit
def _put(mode, w, out, values):
    if mode == _STORE:
        for i in range(len(out)):
            out[i] = values[i]
    elif mode == _SUBTRACT:
        for i in range(len(out)):
            out[i] -= values[i]
    else:
        if w == 0:
            out[:] = 0
        for i in range(len(out)):
            out[i] += values[i]


@jit
def _multiples(first, last, rows, mode, x, step, codes, pace, scales, bucket, levels, divides):
    values, most = np.empty(BLOCK, x.dtype), levels[0]
    begin = first
    while begin < last:
        end = min(last, begin + BLOCK, (begin // bucket + 1) * bucket)
        for w in range(rows):
            row, scale = codes[w * pace + begin : w * pace + end], scales[w, begin // bucket]
            if divides:
                for i in range(len(row)):
                    values[i] = x.dtype.type(row[i]) / most * scale
            else:
                for i in range(len(row)):
                    values[i] = x.dtype.type(row[i]) * scale
            place = begin + (0 if mode == _ADD else w * step)
            _put(mode, w, x[place : place + end - begin], values)
        begin = end


@jit
def _halves(first, last, rows, mode, x, step, codes, pace, negative, other, ends):
    values = np.empty(BLOCK, x.dtype)
    for begin in range(first, last, BLOCK):
        end = min(last, begin + BLOCK)
        for w in range(rows):
            row, low, high = codes[w * pace + begin : w * pace + end], negative[w], other[w]
            for i in range(len(row)):
                sent = x.dtype.type(i < ends[w] - begin)
                values[i] = (low if row[i] else high) * sent
            place = begin + (0 if mode == _ADD else w * step)
            _put(mode, w, x[place : place + end - begin], values)


@jit
def _looked_up(first, last, rows, mode, x, step, codes, pace, numbers, ends):
    values = np.empty(BLOCK, x.dtype)
    for begin in range(first, last, BLOCK):
        end = min(last, begin + BLOCK)
        for w in range(rows):
            row = codes[w * pace + begin : w * pace + end]
            for i in range(len(row)):
                values[i] = numbers[w, row[i]] * x.dtype.type(i < ends[w] - begin)
            place = begin + (0 if mode == _ADD else w * step)
            _put(mode, w, x[place : place + end - begin], values)


@jit
def _powers(first, last, rows, mode, x, step, codes, pace, form):
    values = np.empty(BLOCK, x.dtype)
    bits, bias, fraction, sign = values.view(form.dtype), form[0], form[1], form[2]
    low, zero = form.dtype.type(127), form.dtype.type(0)
    for begin in range(first, last, BLOCK):
        end = min(last, begin + BLOCK)
        for w in range(rows):
            row = codes[w * pace + begin : w * pace + end]
            for i in range(len(row)):
                code = form.dtype.type(row[i])
                size = code & low
                raised = zero if size == zero else (size + bias) << fraction
                bits[i] = raised | (code >> form.dtype.type(7)) << sign
            place = begin + (0 if mode == _ADD else w * step)
            _put(mode, w, x[place : place + end - begin], values)
