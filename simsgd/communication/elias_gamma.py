"""Encodes whole numbers, mostly zeros and ones, as bits of no fixed length (Elias gamma).

For each number that is not zero the stream has the distance to the one before it, a bit for its
sign, and its magnitude; distance and magnitude are in Elias' gamma code, v in 2 floor(log2 v) + 1
bits: as many zeros as v has binary digits after the first, then v in binary. Zero bits fill the
last byte; they hold no number, as a gamma code has a one.

Elias, "Universal codeword sets and representations of the integers", IEEE Trans. Inf. Theory 1975;
used so by Alistarh et al., "QSGD", NeurIPS 2017, section 3.1.

Differs from the paper: QSGD takes Elias' recursive (omega) code, shorter only from 128 on.

Letters: L workers hosted here, n numbers of a row.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import compiled_loops
from .cuts import Cuts


def gamma_bits(numbers: Tensor) -> Tensor:
    """Return the length of the gamma code of positive whole numbers, int64.

    >>> gamma_bits(torch.tensor([1, 2, 3, 4])).tolist()
    [1, 3, 3, 5]
    """
    exponent = (numbers.double().view(torch.int64) >> 52) - 1023  # floor(log2), from the bits
    return 2 * exponent + 1


def num_bits(numbers: Tensor) -> Tensor:
    """Return the bits of each row's stream, [L] int64, of signed numbers [L, n].

    >>> num_bits(torch.tensor([[1, 0, -2]])).item()  # (1 + 1 + 1) + (3 + 1 + 3)
    10
    """
    rows, n = numbers.shape
    if n == 0:
        return torch.zeros(rows, dtype=torch.int64, device=numbers.device)
    if compiled_loops.takes(numbers):
        from . import elias_gamma_kernels

        return elias_gamma_kernels.num_bits(numbers)
    place = torch.arange(1, n + 1, device=numbers.device)
    return _bits_of_each(numbers, place, place.new_zeros(1)).sum(1)


def num_bits_by_segment(numbers: Tensor, cuts: Cuts) -> Tensor:
    """Return the bits of the stream of each segment in rows `numbers` [L, P], [L, S] int64."""
    place = torch.arange(1, cuts.total + 1, device=numbers.device)
    bits = _bits_of_each(numbers, place, cuts.begin(cuts, numbers.device))
    ends = cuts.begin(Cuts((1,) * len(cuts.sizes)), numbers.device)[1:] - 1
    total = bits.cumsum(1)
    last = torch.cat([total.index_select(1, ends), total[:, -1:]], dim=1)  # [L, S]
    return last.diff(dim=1, prepend=last.new_zeros(len(last), 1))


def _bits_of_each(numbers: Tensor, place: Tensor, begin: Tensor) -> Tensor:
    """Return the bits of each number, 0 of a zero; a stream begins behind the place `begin`."""
    sent = numbers != 0
    last = torch.where(sent, place, 0).cummax(1).values  # [L, n]
    distance = place - torch.maximum(F.pad(last[:, :-1], (1, 0)), begin)
    bits = gamma_bits(distance) + 1 + gamma_bits(numbers.abs().clamp(min=1))
    return torch.where(sent, bits, 0)


def encode(numbers: Tensor) -> Tensor:
    """Return the stream of signed numbers [n], uint8.

    >>> encode(torch.tensor([1, 0, -2])).tolist()  # 1 0 1, 010 1 010
    [170, 128]
    """
    if compiled_loops.takes(numbers):
        from . import elias_gamma_kernels

        return elias_gamma_kernels.encoded(numbers)
    signed = numbers.cpu().numpy().astype(np.int64)
    places = np.flatnonzero(signed)
    distance, size = np.diff(places, prepend=-1), np.abs(signed[places])
    widths = np.stack([_widths(distance), 1 + _widths(size)], axis=1)  # [nonzero, 2]
    sign = (signed[places] < 0).astype(np.int64) << (widths[:, 1] - 1)
    return _bits(np.stack([distance, size + sign], axis=1).ravel(), widths.ravel())


def decode(buffer: Tensor, n: int) -> Tensor:
    """Return the `n` numbers whose stream this is, [n] int64."""
    if compiled_loops.takes(buffer):
        from . import elias_gamma_kernels

        return elias_gamma_kernels.decoded(buffer, n)
    bits = "".join(f"{byte:08b}" for byte in buffer.tolist())
    numbers, at, place = [0] * n, 0, -1
    while bits.find("1", at) >= 0:
        distance, at = _gamma(bits, at)
        size, end = _gamma(bits, at + 1)
        place += distance
        numbers[place] = -size if bits[at] == "1" else size
        at = end
    return torch.tensor(numbers, dtype=torch.int64)


def _gamma(bits: str, at: int) -> tuple[int, int]:
    one = bits.index("1", at)
    end = one + (one - at) + 1
    return int(bits[one:end], 2), end


def _widths(numbers: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> "_Ints":
    return 2 * np.frexp(numbers.astype(np.float64))[1].astype(np.int64) - 1


def _bits(words: "_Ints", widths: "_Ints") -> Tensor:
    """Return each word in its width, high bit first, end to end."""
    ends = np.cumsum(widths)
    word = np.repeat(np.arange(len(words)), widths)  # which word each bit is of
    bits = words[word] >> (ends[word] - 1 - np.arange(len(word))) & 1
    return torch.from_numpy(np.packbits(bits.astype(np.uint8)))


_Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
