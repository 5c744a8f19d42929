# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Codes of quantizers, compiled: each entry is read once, its random number made on the way.

Letters: L workers hosted here, n elements of one segment.
"""

import numba
import numpy as np
import torch
from numba.extending import overload
from torch import Tensor

from ...communication.messages.levels import code_dtype
from ...communication.messages.powers_of_two import LEAST, MOST, NEGATIVE
from ...compiled_loops import bits_of, flat, jit, share
from ...keyed_random_kernels import GOLDEN, mixed, streams, unit

_LARGEST = np.int32(MOST + 1 - LEAST)  # code of a positive value
_PLUS = 1.5  # times 2^23 or 2^52: added, it leaves no room for what is behind the point


def ternary(x: Tensor, bound: Tensor | None, scale: Tensor, keys: Tensor) -> Tensor:
    """Return -1, 0 or 1 for each of `x` [L, n], clipped to `bound`, at `scale`, both [L, 1]."""
    codes = torch.empty(x.shape, dtype=torch.int8)
    bounds = torch.full_like(x[:, 0], torch.inf) if bound is None else bound.to(x.dtype).view(-1)
    scales = scale.to(x.dtype).expand(len(x), 1).contiguous().view(-1)
    numbers = streams(keys), bounds.numpy(), scales.numpy(), codes.numpy()
    share(_ternary, x.shape[1], len(x), *flat(x), *numbers)
    return codes


def levels(x: Tensor, norms: Tensor, bucket: int, num_levels: int, keys: Tensor) -> Tensor:
    """Return the signed level of each of `x` [L, n], of norms [L, buckets] greater than 0."""
    codes = torch.empty(x.shape, dtype=code_dtype(num_levels))
    s = norms.new_full((1,), num_levels).numpy()
    numbers = norms.numpy(), bucket, s, streams(keys), codes.numpy()
    share(_levels, x.shape[1], len(x), *flat(x), *numbers)
    return codes


def powers(x: Tensor, keys: Tensor) -> Tensor:
    """Return the code of a power of two for each of `x` [L, n], uint8."""
    codes = torch.empty(x.shape, dtype=torch.uint8)
    array, step = flat(x)
    least = array.dtype.type(2.0**LEAST)
    numbers = array, bits_of(array), step, least, streams(keys), codes.numpy()
    share(_powers, x.shape[1], len(x), *numbers)
    return codes


def nearest(x: Tensor, scales: Tensor, largest: int) -> Tensor:
    """Return the nearest whole multiple of scale / largest for each of `x` [L, n], int8.

    `scales` [L, 1], greater than 0.
    """
    codes = torch.empty(x.shape, dtype=torch.int8)
    most = scales.new_full((1,), largest).numpy()
    plus = scales.new_full((1,), _PLUS / torch.finfo(x.dtype).eps).numpy()
    share(
        _nearest, x.shape[1], len(x), *flat(x), scales.view(-1).numpy(), most, plus, codes.numpy()
    )
    return codes


@jit
def _ternary(first, last, x, step, keys, bounds, scales, codes):
    for w in range(len(keys)):
        row, out = x[w * step + first : w * step + last], codes[w, first:last]
        bound, scale = bounds[w], scales[w]
        start = keys[w] + np.uint64(first + 1) * GOLDEN
        for i in range(len(row)):
            size = abs(row[i])
            size = bound if size > bound else size
            u = unit(mixed(start + np.uint64(i) * GOLDEN), size)
            out[i] = np.int8(u * scale < size) * np.int8(1 - 2 * (row[i] < 0))


@jit
def _levels(first, last, x, step, norms, bucket, s, keys, codes):
    for w in range(len(keys)):
        begin = first
        while begin < last:
            end = min(last, (begin // bucket + 1) * bucket)
            row, out = x[w * step + begin : w * step + end], codes[w, begin:end]
            start = keys[w] + np.uint64(begin + 1) * GOLDEN
            norm, most = norms[w, begin // bucket], s[0]
            for i in range(len(row)):
                r = abs(row[i]) / norm * most
                level = np.floor(r)
                u = unit(mixed(start + np.uint64(i) * GOLDEN), r)
                level += row.dtype.type(u < r - level)
                whole = np.int32(level if level < most else most)
                out[i] = -whole if row[i] < 0 else whole
            begin = end


@jit
def _powers(first, last, x, bits, step, least, keys, codes):
    for w in range(len(keys)):
        row, raw = x[w * step + first : w * step + last], bits[w * step + first : w * step + last]
        out, start = codes[w, first:last], keys[w] + np.uint64(first + 1) * GOLDEN
        for i in range(len(row)):
            size = abs(row[i])
            u = unit(mixed(start + np.uint64(i) * GOLDEN), size)
            exponent, rest = _split(raw[i], size)  # size = (1 + rest) * 2^exponent
            code = exponent + np.int32(1 - LEAST) + np.int32(u < rest)
            code = min(max(code, np.int32(1)), _LARGEST)
            code = np.int32(u * least < size) if size < least else code
            out[i] = code + np.int32(NEGATIVE) * np.int32(row[i] < 0)


@jit
def _nearest(first, last, x, step, scales, largest, plus, codes):
    most, shift = largest[0], plus[0]
    for w in range(len(scales)):
        row, out, scale = x[w * step + first : w * step + last], codes[w, first:last], scales[w]
        for i in range(len(row)):
            multiple = row[i] / scale * most
            multiple = most if multiple > most else multiple
            multiple = -most if multiple < -most else multiple
            out[i] = np.int8(np.int32((multiple + shift) - shift))


def _split(bits, like):
    """Return e and m - 1 of m * 2^e, 1 <= m < 2, for the bits of a number, as torch.frexp has it.

    It gives infinity and NaN the exponent -1 and a rest that is no less than any number.
    """
    raise NotImplementedError


@overload(_split)
def _(bits, like):
    if like == numba.float32:
        fraction, one = np.uint32((1 << 23) - 1), np.float32(2.0**-23)

        def split(bits, like):
            exponent = np.int32((bits >> np.uint32(23)) & np.uint32(255)) - np.int32(127)
            rest = np.float32(np.int32(bits & fraction)) * one
            return _of_infinity(exponent, rest, np.int32(128), like)
    else:
        fraction, one = np.uint64((1 << 52) - 1), 2.0**-52

        def split(bits, like):
            exponent = np.int32((bits >> np.uint64(52)) & np.uint64(2047)) - np.int32(1023)
            rest = np.float64(np.int64(bits & fraction)) * one
            return _of_infinity(exponent, rest, np.int32(1024), like)

    return split


@jit
def _of_infinity(exponent, rest, most, size):
    """Return the same of a number; what torch.frexp says of infinity and NaN, which is no power."""
    return np.int32(-1) if exponent == most else exponent, size if exponent == most else rest
