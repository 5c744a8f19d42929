"""Convolutions of a folded batch: one call forward, each worker's own weight gradient back.

Letters: L workers of the pass, b samples each, c channels in, o channels out.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .fold import Fold
from .grad_accumulator import Rows
from .plan import Plan

Numbers = tuple[int, ...]  # one for each spatial dimension


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution, numbers for each spatial dimension."""

    stride: Numbers
    padding: Numbers
    dilation: Numbers
    groups: int = 1
    transposed: bool = False
    output_padding: Numbers = ()  # of a transposed one; () for zeros

    def widened(self, workers: int) -> "Geometry":
        """Return that of the convolution in which every worker is a group."""
        return replace(self, groups=self.groups * workers)

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution of `x` [b, c, ...]."""
        return torch.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding or (0,) * (x.dim() - 2),
            self.groups,
        )


_SMALL = 1 << 23  # multiplications of one worker, below which its part is small
_OUTNUMBERED = 32  # weights for each activation of a worker


class Convolution(torch.autograd.Function):
    """A convolution of any dimension, whose backward adds the workers' gradients to `rows`."""

    @staticmethod
    def forward(
        node: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Rows,
        fold: Fold,
        geometry: Geometry,
        plan: Plan,
    ) -> Tensor:
        """Return [L * b, o, ...] of `x` [L * b, c, ...] and `weight` [o, c / groups, ...].

        That of a transposed one is [c, o / groups, ...].
        """
        node.save_for_backward(x, weight)
        node.names = rows.name(weight), rows.name(bias)
        node.rows, node.fold, node.geometry, node.plan = rows, fold, geometry, plan
        return geometry.convolved(x, weight, bias)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, weight = node.saved_tensors
        name, bias = node.names
        slope = slope.contiguous()
        if bias is not None:
            own = node.fold.rows(slope.flatten(2) if slope.dim() > 2 else slope.unsqueeze(2))
            node.rows.add_sum(bias, own.sum(3))
        back: Tensor | None = None
        if name is not None and node.needs_input_grad[0] and node.fold.workers == 1:
            back, of_one = _both(slope, x, weight, node.geometry)
            node.rows.add(name, of_one.unsqueeze(0))
            return back, None, None, None, None, None, None
        if name is not None:
            way = WAYS[chosen_way(x, slope, weight, node.geometry, node.fold.workers, node.plan)]
            way(node.rows, name, x, slope, weight, node.geometry, node.fold)
        if node.needs_input_grad[0]:
            back = _backward(slope, x, weight, node.geometry, x_wanted=True)
        return back, None, None, None, None, None, None


def chosen_way(
    x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry, workers: int, plan: Plan
) -> str:
    """Return which of `WAYS` is the fastest for `x` [L * b, c, ...] and `slope` [L * b, o, ...].

    A function of shapes and plan alone, as measured on two CPU cores: mostly worker by worker;
    as groups of one convolution where a worker's part is too small to be worth a call and its
    channels fill vectors; as a product of matrices where weights by far outnumber activations.
    """
    if workers == 1:
        return "each"
    if plan.one_call:
        return "groups"
    channels, kernel, groups = weight.shape[1], math.prod(weight.shape[2:]), geometry.groups
    largest = max(x.numel(), slope.numel()) // workers  # of one worker
    if groups == 1 and not geometry.transposed and weight.numel() > _OUTNUMBERED * largest:
        return "product"
    places = (x if geometry.transposed else slope)[:, 0].numel() // workers
    small = weight.numel() * places < _SMALL
    fits = channels % 8 == 0 or (channels == 1 and groups > 1)
    return "groups" if small and fits and kernel > 1 else "each"


def each(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry, fold: Fold
) -> None:
    """Add the weight gradients, one call for each worker."""
    pairs = zip(fold.rows(slope), fold.rows(x), strict=True)
    rows.add_each(name, (_backward(own, one, weight, geometry) for own, one in pairs))


def grouped(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry, fold: Fold
) -> None:
    """Add the weight gradients of one convolution in which every worker is a group."""
    workers = fold.workers
    like = weight.new_empty(workers * len(weight), *weight.shape[1:])  # whose numbers do not count
    whole = _backward(fold.wide(slope), fold.wide(x), like, geometry.widened(workers))
    rows.add(name, whole.unflatten(0, (workers, -1)))


def product(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry, fold: Fold
) -> None:
    """Add the weight gradients as products of matrices; for convolutions without groups."""
    x, slope = fold.rows(x), fold.rows(slope)  # [L, b, c, ...] and [L, b, o, ...]
    windows = pad(x, [p for n in reversed(geometry.padding) for p in (n, n)])
    kernel = weight.shape[2:]
    steps = zip(kernel, geometry.stride, geometry.dilation, strict=True)
    for axis, (k, s, d) in enumerate(steps, 3):
        windows = windows.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        windows = windows.narrow(axis, 0, slope.shape[axis])
    space = len(kernel)  # windows: [L, b, c, *places, *kernel]
    order = [0, 1, *range(3, 3 + space), 2, *range(3 + space, 3 + 2 * space)]
    columns = windows.permute(order).reshape(len(x), -1, math.prod(weight.shape[1:]))
    out = slope.transpose(1, 2).reshape(len(x), len(weight), -1)  # [L, o, b * places]
    rows.add_product(name, out, columns)


WAYS = {"each": each, "groups": grouped, "product": product}


def _backward(
    slope: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, x_wanted: bool = False
) -> Tensor:
    parts = _parts(slope, x, weight, geometry, [x_wanted, not x_wanted, False])
    return parts[0 if x_wanted else 1]


def _both(slope: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and of the weight, of one worker."""
    back, own, _ = _parts(slope, x, weight, geometry, [True, True, False])
    return back, own


def _parts(
    slope: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    parts: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward.default(
        slope,
        x,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding or [0] * (x.dim() - 2),
        geometry.groups,
        wanted,
    )
    return parts
