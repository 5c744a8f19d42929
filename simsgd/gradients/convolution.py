"""Convolutions of a folded batch: one call forward, each worker's own weight gradient back.

Letters: L workers of the pass, b samples each, c channels in, o channels out.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .grad_accumulator import Rows

Numbers = tuple[int, ...]  # one for each spatial dimension
Geometry = tuple[Numbers, Numbers, Numbers, int]  # stride, padding, dilation, groups

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
        workers: int,
        geometry: Geometry,
    ) -> Tensor:
        """Return [L * b, o, ...] of `x` [L * b, c, ...] and `weight` [o, c / groups, ...].

        `geometry` is stride, padding, dilation and groups.
        """
        node.save_for_backward(x, weight)
        node.names = rows.name(weight), rows.name(bias)
        node.rows, node.workers, node.geometry = rows, workers, geometry
        stride, padding, dilation, groups = geometry
        zeros = (0,) * (x.dim() - 2)
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, weight = node.saved_tensors
        name, bias = node.names
        slope = slope.contiguous()
        own = slope.unflatten(0, (node.workers, -1))  # [L, b, o, ...]
        if name is not None:
            inputs = x.unflatten(0, (node.workers, -1))  # [L, b, c, ...]
            way = WAYS[chosen_way(inputs, own, weight, node.geometry)]
            way(node.rows, name, inputs, own, weight, node.geometry)
        if bias is not None:
            node.rows.add_sum(bias, own.flatten(3).sum(3))
        back = None
        if node.needs_input_grad[0]:
            back = _backward(slope, x, weight, node.geometry, x_wanted=True)
        return back, None, None, None, None, None


def chosen_way(x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry) -> str:
    """Return which of `WAYS` is the fastest for `x` [L, b, c, ...] and `slope` [L, b, o, ...].

    A function of shapes and device alone, as measured on two CPU cores: mostly worker by worker;
    as groups of one convolution where a worker's part is too small to be worth a call and its
    channels fill vectors; as a product of matrices where weights by far outnumber activations.
    """
    if len(x) == 1:
        return "each"
    if x.device.type != "cpu":
        return "groups"
    channels, kernel, groups = weight.shape[1], math.prod(weight.shape[2:]), geometry[3]
    if groups == 1 and weight.numel() > _OUTNUMBERED * max(x[0].numel(), slope[0].numel()):
        return "product"
    small = weight.numel() * slope[0, :, 0].numel() < _SMALL
    fits = channels % 8 == 0 or (channels == 1 and groups > 1)
    return "groups" if small and fits and kernel > 1 else "each"


def each(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry
) -> None:
    """Add the weight gradients, one call for each worker."""
    pairs = zip(slope, x, strict=True)
    rows.add_each(name, (_backward(own, one, weight, geometry) for own, one in pairs))


def grouped(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry
) -> None:
    """Add the weight gradients of one convolution in which every worker is a group."""
    stride, padding, dilation, groups = geometry
    wide, wide_slope = (t.transpose(0, 1).flatten(1, 2) for t in (x, slope))  # [b, L * c, ...]
    repeated = weight.expand(len(x), *weight.shape).flatten(0, 1)  # [L * o, c / groups, ...]
    whole = _backward(wide_slope, wide, repeated, (stride, padding, dilation, groups * len(x)))
    rows.add(name, whole.unflatten(0, (len(x), -1)))


def product(
    rows: Rows, name: str, x: Tensor, slope: Tensor, weight: Tensor, geometry: Geometry
) -> None:
    """Add the weight gradients as products of matrices; for convolutions without groups."""
    stride, padding, dilation, _ = geometry
    windows = pad(x, [p for n in reversed(padding) for p in (n, n)])
    kernel = weight.shape[2:]
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), 3):
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
    *space, groups = geometry
    zeros, wanted = [0] * (x.dim() - 2), [x_wanted, not x_wanted, False]
    parts = torch.ops.aten.convolution_backward.default(
        slope, x, weight, None, *space, False, zeros, groups, wanted
    )
    one: Tensor = parts[0 if x_wanted else 1]
    return one
