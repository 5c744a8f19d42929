# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""Whole numbers of a few bits each as bytes and back, compiled.

Letters: k numbers.
"""

import numpy as np
import torch
from torch import Tensor

from ..compiled_loops import flat, jit, share


def packed(numbers: Tensor, width: int) -> Tensor:
    """Return numbers [k] of `width` bits, high bit first, uint8; the highest is a sign."""
    buffer = torch.empty(-(-len(numbers) * width // 8), dtype=torch.uint8)
    array = flat(_as_numbers(numbers).unsqueeze(0))[0]
    share(_packed, 1, 1, array, np.int64(width), buffer.numpy())
    return buffer


def unpacked(buffer: Tensor, width: int, k: int, signed: bool, dtype: torch.dtype) -> Tensor:
    """Return the `k` numbers that were packed, [k]."""
    numbers = torch.empty(k, dtype=dtype)
    share(_unpacked, 1, 1, buffer.contiguous().numpy(), np.int64(width), signed, numbers.numpy())
    return numbers


def _as_numbers(numbers: Tensor) -> Tensor:
    return numbers.view(torch.uint8) if numbers.dtype == torch.bool else numbers


@jit
def _packed(first, last, numbers, width, buffer):
    top, word, held, place = np.int64(1) << (width - 1), np.uint64(0), np.int64(0), 0
    for number in numbers:
        code = np.int64(number)
        code = top - code if code < 0 else code
        word = word << np.uint64(width) | np.uint64(code)
        held += width
        while held >= 8:
            held -= 8
            buffer[place] = np.uint8(word >> np.uint64(held) & np.uint64(255))
            place += 1
    if held > 0:
        buffer[place] = np.uint8(word << np.uint64(8 - held) & np.uint64(255))


@jit
def _unpacked(first, last, buffer, width, signed, numbers):
    top, low = np.int64(1) << (width - 1), (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    word, held, place = np.uint64(0), np.int64(0), 0
    for i in range(len(numbers)):
        while held < width:
            word = word << np.uint64(8) | np.uint64(buffer[place])
            held += 8
            place += 1
        held -= width
        code = np.int64(word >> np.uint64(held) & low)
        numbers[i] = top - code if signed and code >= top else code
