"""Normalization of a folded batch: each worker's own statistics, each worker's own gradients.

Letters: L workers of the pass, b samples each, c channels.
"""

from typing import Any

import torch
from torch import Tensor

from .fold import Fold
from .grad_accumulator import Rows
from .plan import Plan

_SMALL = 1 << 12  # elements of one worker, below which one call for all is faster on a CPU


class Affine(torch.autograd.Function):
    """`x * weight + bias`, whose backward adds the workers' gradients to `rows`."""

    @staticmethod
    def forward(
        node: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rows: Rows,
        fold: Fold,
        shape: tuple[int, int],
    ) -> Tensor:
        """Return `x` scaled and shifted; taken apart, it is [outer, L, m, n, r] for `shape` (n, r).

        `weight` and `bias` have n elements.
        """
        n, rest = shape
        node.save_for_backward(x, weight)
        node.names = rows.name(weight), rows.name(bias)
        outer = fold.each if fold.by_turns else 1
        node.rows, node.shape = rows, (outer, fold.workers, -1, n, rest)
        out = x.reshape(node.shape)
        out = out.clone() if weight is None else out * weight.reshape(n, 1)
        return (out if bias is None else out.add_(bias.reshape(n, 1))).view(x.shape)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, weight = node.saved_tensors
        name, bias = node.names
        own = slope.reshape(node.shape)
        if name is not None:
            _add(node.rows, name, own * x.reshape(node.shape))
        if bias is not None:
            _add(node.rows, bias, own)
        back = slope
        if weight is not None:
            back = (own * weight.reshape(-1, 1)).view(slope.shape)
        return back, None, None, None, None, None


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor | None, Tensor | None],
    rows: Rows,
    fold: Fold,
    settings: tuple[float, float],
    plan: Plan,
) -> Tensor:
    """Return `x` [L * b, c, ...] normalized in training, each worker's part by itself.

    `statistics` are the running mean and variance, [L, c] each, updated in place; `settings` are
    momentum and epsilon. One call for each worker finds its part in the processor's cache; where
    that does not count, workers become channels of one call.
    """
    of_one = x.numel() // fold.workers
    if of_one == x.shape[1]:
        shape = torch.Size([fold.each, *x.shape[1:]])
        raise ValueError(f"Expected more than 1 value per channel when training, got {shape}")
    out: Tensor
    if plan.one_call or of_one <= _SMALL:
        flat = [None if s is None else s.view(1, -1) for s in statistics]
        wide = fold.wide(x).unsqueeze(0)  # [1, b, L * c, ...]
        out = BatchNorm.apply(wide, weight, bias, rows, flat, settings)
        return fold.narrow(out.squeeze(0))
    own = fold.unfolded(x)  # [L, b, c, ...]
    out = BatchNorm.apply(own, weight, bias, rows, statistics, settings)
    return fold.folded(out)


class BatchNorm(torch.autograd.Function):
    """Batch normalization in training, of several groups, by torch's own kernels."""

    @staticmethod
    def forward(
        node: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rows: Rows,
        statistics: tuple[Tensor | None, Tensor | None],
        settings: tuple[float, float],
    ) -> Tensor:
        """Return `x` [g, b, n, ...] normalized: g groups of n channels, n a multiple of c."""
        groups, channels = x.shape[0], x.shape[2]
        scale, shift = (None if t is None else t.repeat(channels // len(t)) for t in (weight, bias))
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        mean, inverse = x.new_empty(groups, channels), x.new_empty(groups, channels)
        for g in range(groups):
            running = [None if s is None else s[g] for s in statistics]
            made = {"out": out[g], "save_mean": mean[g], "save_invstd": inverse[g]}
            torch.ops.aten.native_batch_norm.out(
                x[g], scale, shift, *running, True, *settings, **made
            )
        node.save_for_backward(x, scale, mean, inverse)
        node.names, node.rows = (rows.name(weight), rows.name(bias)), rows
        node.epsilon = settings[1]
        return out

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, scale, mean, inverse = node.saved_tensors
        if len(x) == 1:
            return _of_one_group(node, slope)
        back = torch.empty_like(x, memory_format=torch.contiguous_format)
        slopes = [torch.empty_like(mean), torch.empty_like(mean)]  # of weight and bias, [g, n]
        wanted = [True, *(name is not None for name in node.names)]
        for g in range(len(x)):
            parts = torch.ops.aten.native_batch_norm_backward.default(
                slope[g], x[g], scale, None, None, mean[g], inverse[g], True, node.epsilon, wanted
            )
            for whole, part in zip((back, *slopes), parts, strict=True):
                if part is not None:
                    whole[g] = part
        for name, whole in zip(node.names, slopes, strict=True):
            if name is not None:
                node.rows.add(name, whole)
        return back, None, None, None, None, None


def _of_one_group(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    """Return what the backward of one group does, without copies."""
    x, scale, mean, inverse = node.saved_tensors
    wanted = [True, *(name is not None for name in node.names)]
    back, *slopes = torch.ops.aten.native_batch_norm_backward.default(
        slope[0], x[0], scale, None, None, mean[0], inverse[0], True, node.epsilon, wanted
    )
    for name, whole in zip(node.names, slopes, strict=True):
        if name is not None:
            node.rows.add(name, whole)
    return back.unsqueeze(0), None, None, None, None, None


def _add(rows: Rows, name: str, terms: Tensor) -> None:
    """Add the sums of `terms` [outer, L, m, n, r] over all but L and n."""
    total = terms.sum(4) if terms.shape[4] > 1 else terms.squeeze(4)  # [outer, L, m, n]
    rows.add(name, total.sum((0, 2)))
