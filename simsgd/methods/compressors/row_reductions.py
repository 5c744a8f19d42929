"""Sums along rows that come out the same to the last bit wherever the row stands.

Floating-point addition is not associative, and `torch.sum` groups its terms as shape, threads and
device suggest. Here the terms are added in a fixed tree: a row has the same sum alone and among
others, with or without zeros padded behind it, on the CPU and on a GPU. A power of two is taken out
first, which costs no digit, so that neither 1e30 nor 1e-42 leaves the range when it is squared.

Letters: L workers hosted here, n elements of one row.
"""

import torch
from torch import Tensor

from ...communication.messages.contract import for_each_row

_BLOCK = 1024  # terms of one subtree, a power of two


def row_sum(x: Tensor) -> Tensor:
    """Return the sums along the last dimension of `x` [..., n], [..., 1]."""
    while (n := x.shape[-1]) > _BLOCK:
        whole = n // _BLOCK * _BLOCK
        blocks = _folded(x[..., :whole].unflatten(-1, (-1, _BLOCK))).squeeze(-1)
        x = torch.cat([blocks, _folded(x[..., whole:])], dim=-1)
    return _folded(x)


def row_peak(x: Tensor) -> Tensor:
    """Return the largest magnitude in each row of `x` [..., n], [..., 1]; 0 for an empty row."""
    if x.shape[-1] == 0:
        return _zeros(x)
    least, most = x.aminmax(dim=-1, keepdim=True)
    return torch.maximum(-least, most)


def row_mean(size: Tensor, entries: Tensor) -> Tensor:
    """Return the means [..., 1] of non-negative `size` [..., n] over `entries` [..., 1] of it."""
    peak = row_peak(size)
    unit = _unit(peak)
    mean = row_sum(size / unit) / entries.clamp(min=1) * unit
    return torch.minimum(mean, peak)


def row_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norms of the rows of `x` [..., n], [..., 1]."""
    unit = _unit(row_peak(x))
    return row_sum((x / unit).square_()).sqrt_() * unit


def row_std(x: Tensor, entries: Tensor) -> Tensor:
    """Return the population standard deviations [L, 1] of the first `entries` [L, 1] of a row."""
    unit = _unit(row_peak(x))
    some = entries.clamp(min=1)
    scaled = x / unit  # [L, n]
    off = scaled.sub_(row_sum(scaled) / some)
    off.mul_(torch.arange(x.shape[-1], device=x.device) < entries)
    return (row_sum(off.square_()) / some).sqrt_() * unit


def entries_of(values: Tensor, counts: Tensor | None) -> Tensor:
    """Return how many entries of each row of `values` [L, n] are sent, [L, 1] in its dtype."""
    sent = for_each_row(values.shape[1], values) if counts is None else counts
    return sent.to(values.dtype).unsqueeze(1)


def as_float32(scalars: Tensor) -> Tensor:
    """Return non-negative numbers as they travel: float32, the largest one if they exceed it."""
    largest = min(torch.finfo(dtype).max for dtype in (torch.float32, scalars.dtype))
    return scalars.clamp(max=largest).float()


def _folded(x: Tensor) -> Tensor:
    if x.shape[-1] == 0:
        return _zeros(x)
    while (n := x.shape[-1]) > 1:
        half = 1 << (n - 1).bit_length() - 1  # the largest power of two below n
        paired = x[..., : n - half] + x[..., half:]
        x = paired if n == 2 * half else torch.cat([paired, x[..., n - half : half]], dim=-1)
    return x


def _unit(peak: Tensor) -> Tensor:
    mantissa = torch.frexp(peak).mantissa  # peak = mantissa * 2^e, mantissa in [1/2, 1)
    return torch.where(peak > 0, peak / (2 * mantissa), 1.0)


def _zeros(x: Tensor) -> Tensor:
    return x.new_zeros((*x.shape[:-1], 1))
