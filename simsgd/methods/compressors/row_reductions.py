"""Sums along rows that come out the same to the last bit wherever the row stands.

Floating-point addition is not associative, and `torch.sum` groups its terms as shape, threads and
device suggest. Here the terms are added in a fixed tree: a row has the same sum alone and among
others, with or without zeros padded behind it, on the CPU and on a GPU. A power of two is taken out
first, which costs no digit, so that neither 1e30 nor 1e-42 leaves the range when it is squared.
The compiled form, `row_kernels.py`, adds in the same tree.

Letters: L workers hosted here, n elements of one row.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import compiled_loops
from ...communication.messages.contract import for_each_row

BLOCK = 1024  # terms of one subtree, a power of two


def row_sum(x: Tensor) -> Tensor:
    """Return the sums along the last dimension of `x` [..., n], [..., 1]."""
    while (n := x.shape[-1]) > BLOCK:
        whole = n // BLOCK * BLOCK
        blocks = _folded(x[..., :whole].unflatten(-1, (-1, BLOCK))).squeeze(-1)
        x = torch.cat([blocks, _folded(x[..., whole:])], dim=-1)
    return _folded(x)


def row_peak(x: Tensor) -> Tensor:
    """Return the largest magnitude in each row of `x` [..., n], [..., 1]; 0 for an empty row."""
    if x.shape[-1] == 0:
        return _zeros(x)
    if x.dim() == 2 and compiled_loops.takes(x):
        return bucket_peak(x, x.shape[1])
    least, most = x.aminmax(dim=-1, keepdim=True)
    return torch.maximum(-least, most)


def row_mean(size: Tensor, entries: Tensor) -> Tensor:
    """Return the means [..., 1] of non-negative `size` [..., n] over `entries` [..., 1] of it."""
    peak = row_peak(size)
    return mean_of(_terms(size, "PLAIN", unit_of(peak)), peak, entries)


def mean_magnitude(x: Tensor, entries: Tensor) -> Tensor:
    """Return the means [L, 1] of the magnitudes in rows `x` [L, n] over `entries` [L, 1] of it."""
    peak = row_peak(x)
    return mean_of(_terms(x, "MAGNITUDES", unit_of(peak)), peak, entries)


def mean_by_sign(x: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean magnitude of a row's negative entries, and that of the others, [L, 1] each.

    `entries` [L, 1] of rows `x` [L, n] count.
    """
    below = _terms(x, "NEGATIVE", torch.ones_like(entries))
    if compiled_loops.takes(x):
        from .row_kernels import extremes

        peaks = extremes(x, x.shape[1])
    else:
        peaks = row_peak(x.clamp(max=0)), row_peak(x.clamp(min=0))
    least = mean_of(_terms(x, "BELOW", unit_of(peaks[0])), peaks[0], below)
    return least, mean_of(_terms(x, "ABOVE", unit_of(peaks[1])), peaks[1], entries - below)


def row_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norms of the rows of `x` [..., n], [..., 1]."""
    unit = unit_of(row_peak(x))
    return _terms(x, "SQUARES", unit).sqrt_() * unit


def bucket_peak(x: Tensor, size: int) -> Tensor:
    """Return the largest magnitude by bucket of `size` consecutive entries, [L, buckets]."""
    if compiled_loops.takes(x):
        from .row_kernels import extremes

        return torch.maximum(*extremes(x, size))
    return row_peak(buckets(x, size)).squeeze(2)


def bucket_norm(x: Tensor, size: int) -> Tensor:
    """Return the Euclidean norm by bucket of `size` consecutive entries, [L, buckets]."""
    if compiled_loops.takes(x):
        from .row_kernels import SQUARES, partial_sums

        unit = unit_of(bucket_peak(x, size))
        sums: Tensor = partial_sums(x, size, SQUARES, unit)  # [L, buckets, blocks]
        return row_sum(sums).squeeze(2).sqrt_() * unit
    return row_norm(buckets(x, size)).squeeze(2)


def buckets(x: Tensor, size: int) -> Tensor:
    """Return rows `x` [L, n] as [L, buckets, size], with zeros behind the last entry."""
    size = max(1, size)
    padded: Tensor = F.pad(x, (0, -x.shape[1] % size))
    return padded.view(len(x), -1, size)


def row_std(x: Tensor, entries: Tensor) -> Tensor:
    """Return the population standard deviations [L, 1] of the first `entries` [L, 1] of a row."""
    unit = unit_of(row_peak(x))
    some = entries.clamp(min=1)
    if compiled_loops.takes(x):
        from .row_kernels import DEVIATIONS, partial_sums

        mean = _terms(x, "PLAIN", unit) / some
        squares = row_sum(partial_sums(x, x.shape[1], DEVIATIONS, unit, mean, entries)).squeeze(2)
    else:
        scaled = x / unit  # [L, n]
        off = scaled.sub_(row_sum(scaled) / some)
        off.mul_(torch.arange(x.shape[-1], device=x.device) < entries)
        squares = row_sum(off.square_())
    return (squares / some).sqrt_() * unit


def entries_of(values: Tensor, counts: Tensor | None) -> Tensor:
    """Return how many entries of each row of `values` [L, n] are sent, [L, 1] in its dtype."""
    sent = for_each_row(values.shape[1], values) if counts is None else counts
    return sent.to(values.dtype).unsqueeze(1)


def as_float32(scalars: Tensor) -> Tensor:
    """Return non-negative numbers as they travel: float32, the largest one if they exceed it.

    A zero is +0.
    """
    largest = min(torch.finfo(dtype).max for dtype in (torch.float32, scalars.dtype))
    return scalars.clamp(max=largest).float().abs()


def mean_of(total: Tensor, peak: Tensor, entries: Tensor) -> Tensor:
    """Return the mean of magnitudes up to `peak`, whose sum in units of it is `total`."""
    return torch.minimum(total / entries.clamp(min=1) * unit_of(peak), peak)


def _terms(x: Tensor, kind: str, unit: Tensor) -> Tensor:
    """Return the sums along rows of what `kind` says of x / unit; see `_KINDS`."""
    if x.dim() != 2 or not compiled_loops.takes(x):
        return row_sum(_KINDS[kind](x, unit))
    from . import row_kernels

    sums = row_kernels.partial_sums(x, x.shape[1], getattr(row_kernels, kind), unit)
    return row_sum(sums).squeeze(2)


_KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "PLAIN": lambda x, unit: x / unit,
    "SQUARES": lambda x, unit: (x / unit).square_(),
    "MAGNITUDES": lambda x, unit: x.abs().div_(unit),
    "BELOW": lambda x, unit: x.clamp(max=0).neg_().div_(unit),
    "ABOVE": lambda x, unit: x.clamp(min=0).div_(unit),
    "NEGATIVE": lambda x, unit: (x < 0).to(x.dtype),
}


def _folded(x: Tensor) -> Tensor:
    if x.shape[-1] == 0:
        return _zeros(x)
    while (n := x.shape[-1]) > 1:
        half = 1 << (n - 1).bit_length() - 1  # the largest power of two below n
        paired = x[..., : n - half] + x[..., half:]
        x = paired if n == 2 * half else torch.cat([paired, x[..., n - half : half]], dim=-1)
    return x


def unit_of(peak: Tensor) -> Tensor:
    """Return the power of two that is taken out of numbers up to `peak`; 1 if that is 0."""
    mantissa = torch.frexp(peak).mantissa  # peak = mantissa * 2^e, mantissa in [1/2, 1)
    return torch.where(peak > 0, peak / (2 * mantissa), 1.0)


def _zeros(x: Tensor) -> Tensor:
    return x.new_zeros((*x.shape[:-1], 1))
