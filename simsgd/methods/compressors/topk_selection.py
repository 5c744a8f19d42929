"""Find the largest entries exactly, the same ones on every device.

Letters: L workers hosted here, n elements of one segment, k kept, s sampled.
"""

import math

import numpy as np
import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.cuts import Cuts

_SMALL = 32768  # elements below which looking at all of them is as fast
_DENSE = 32  # n / k below which a bar keeps too many to gain


def largest(x: Tensor, k: int) -> Tensor:
    """Return where the k entries of largest magnitude in each row of `x` [L, n] are.

    The result is [L, k], ascending in each row. Of equal magnitudes the lowest index is taken.
    On the CPU a sample of a long row gives a bar that k entries reach almost surely; only those
    are ranked, and all are if there are fewer. The result is the same.
    """
    n = x.shape[1]
    if x.is_cuda:
        order = x.abs().sort(dim=1, descending=True, stable=True).indices
        return order[:, :k].sort(dim=1).values
    if not n:
        return torch.empty(len(x), 0, dtype=torch.int64)
    if x.dtype == torch.bfloat16:  # which numpy lacks
        x = x.float()
    found = _above_a_bar(x, k) if n >= _SMALL and n >= _DENSE * k else None
    if found is None and compiled_loops.takes(x):
        from .bar_kernels import largest_of_all

        found = largest_of_all(x, k)
    return _among_all(x.abs(), k) if found is None else found


def largest_of_each(x: Tensor, cuts: Cuts, kept: Cuts) -> Tensor:
    """Return where the largest entries of each segment in rows `x` [L, P] are, [L, K], ascending.

    `kept` is k of each segment; the entries are those of `largest`.
    """
    if x.is_cuda:
        return ranked_in_segments(x, cuts, kept)
    pieces = zip(cuts.split(x), kept.sizes, strict=True)
    index = torch.cat([largest(own, k) for own, k in pieces], dim=1)
    return index.add_(cuts.begin(kept, x.device))


def ranked_in_segments(x: Tensor, cuts: Cuts, kept: Cuts) -> Tensor:
    """Return the same from two sorts of all entries: by magnitude, then by segment."""
    by_size = x.abs().sort(dim=1, descending=True, stable=True).indices  # [L, P]
    return chosen_in_segments(by_size, cuts, kept, kept.place(x.device))


def chosen_in_segments(order: Tensor, cuts: Cuts, kept: Cuts, place: Tensor) -> Tensor:
    """Return which entries stand at a `place` [K] of their segment's order, [L, K], ascending.

    `order` [L, P] has all entries, those of each segment in its order; `kept` is how many places
    each has.
    """
    owner = cuts.owner(order.device)[order].sort(dim=1, stable=True).indices
    chosen = cuts.begin(kept, order.device) + place
    return order.gather(1, owner.index_select(1, chosen)).sort(dim=1).values


def _above_a_bar(x: Tensor, k: int) -> Tensor | None:
    """Return the places [L, k], None if a row has fewer than k entries that reach its bar."""
    workers, n = x.shape
    bar = _bar(x, k)  # [L, 1]
    if compiled_loops.takes(x):
        from .bar_kernels import largest_above

        return largest_above(x, bar, k)
    bars, values = bar.numpy(), x.numpy()
    size, reaches = np.empty(n, values.dtype), np.empty(n, bool)  # of one row, which stay in cache
    index = np.empty((workers, k), np.int64)
    for row, bar, chosen in zip(values, bars, index, strict=True):
        np.greater_equal(np.abs(row, out=size), bar, out=reaches)
        place = np.flatnonzero(reaches)
        if len(place) < k:
            return None
        order = np.argsort(-size[place], kind="stable")[:k]
        chosen[:] = np.sort(place[order])
    return torch.from_numpy(index)


def _bar(x: Tensor, k: int) -> Tensor:
    """Return a magnitude that a little more than k entries of each row should reach, [L, 1].

    It is the m-th largest of s sampled entries, of which k s / n are expected among the k largest;
    m lies four standard deviations above that.
    """
    n = x.shape[1]
    stride = max(1, n // (16 * math.isqrt(n)))
    sample = x[:, ::stride].abs()  # [L, s]
    expected = k * sample.shape[1] / n
    m = min(sample.shape[1], math.ceil(expected + 4 * math.sqrt(expected) + 4))
    return sample.topk(m, dim=1, sorted=False).values.amin(1, keepdim=True)


def _among_all(size: Tensor, k: int) -> Tensor:
    values, index = size.topk(k, dim=1, sorted=False)  # [L, k]
    least = values.amin(1, keepdim=True)  # [L, 1]
    reaching = np.count_nonzero(size.numpy() >= least.numpy(), axis=1)  # [L]
    for row in np.flatnonzero(reaching > k).tolist():  # topk chose among equals as it liked
        index[row] = _lowest(size[row], least[row], k)
    return index.sort(dim=1).values


def _lowest(size: Tensor, least: Tensor, k: int) -> Tensor:
    above = (size > least).nonzero().flatten()
    equal = (size == least).nonzero().flatten()
    return torch.cat([above, equal[: k - len(above)]])
