# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""A trip in two bytes, compiled: to float16 or bfloat16 and back, to the nearest, ties to even.

Letters: L workers hosted here, n elements of one segment.
"""

import numpy as np
import torch
from torch import Tensor

from ...compiled_loops import BLOCK, flat, jit, share

_ROUNDED = {torch.float16: 13, torch.bfloat16: 16}  # the last bits of a float32, which go
_COARSE = {torch.float16: 113 << 23, torch.bfloat16: 0}  # bits of 2^-14: places below are fixed ...
_SHIFT = 0.5  # ... and the last is that of this number in float32
_INFINITY = 0x7F800000  # NaN is above


def rounded(x: Tensor, dtype: torch.dtype, most: float) -> Tensor:
    """Return `x` [L, n], float32, clipped to `most`, as it comes out of a trip in `dtype`."""
    result = torch.empty(x.shape, dtype=x.dtype)
    known = np.float32(most), np.uint32(_COARSE[dtype]), np.uint32(_ROUNDED[dtype])
    share(_rounded, x.shape[1], len(x), *flat(x), *known, result.numpy().view(np.uint32))
    return result


@jit
def _rounded(first, last, x, step, most, coarse, lost, result):
    clipped, near = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    raw, fixed, shift = clipped.view(np.uint32), near.view(np.uint32), np.float32(_SHIFT)
    one, kept = np.uint32(1), ~((np.uint32(1) << lost) - np.uint32(1))
    half = (np.uint32(1) << (lost - np.uint32(1))) - np.uint32(1)
    for w in range(len(result)):
        for begin in range(first, last, BLOCK):
            end = min(last, begin + BLOCK)
            row, out = x[w * step + begin : w * step + end], result[w, begin:end]
            for i in range(len(row)):
                value = most if row[i] > most else row[i]
                value = -most if value < -most else value
                clipped[i] = value
                near[i] = np.copysign((abs(value) + shift) - shift, value)
            for i in range(len(row)):
                bits = raw[i]
                size = bits & np.uint32(0x7FFFFFFF)
                sent = (bits + half + ((bits >> lost) & one)) & kept
                sent = fixed[i] if size < coarse else sent
                out[i] = bits if size > np.uint32(_INFINITY) else sent
