"""Answers to layers of a folded batch, see `folding`.

Letters: L workers of the pass, b samples each, c channels.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from .contract import UnsupportedModel
from .convolution import Geometry, Numbers
from .dropout import Function
from .folded_products import elementwise
from .folding import LAYERS, MIXED, Folding, answers


@answers(LAYERS, F.linear)
def linear(
    folding: Folding, func: Function, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    """Answer `F.linear`."""
    if not folding.wanted(weight, bias):
        return None
    folding.split(func, input)
    return folding.seen(folding.weights.linear(input, weight, bias))


@answers(LAYERS, F.conv1d, F.conv2d, F.conv3d)
def convolution(
    folding: Folding,
    func: Function,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Numbers = 1,
    padding: str | int | Numbers = 0,
    dilation: int | Numbers = 1,
    groups: int = 1,
) -> Tensor | None:
    """Answer a convolution."""
    if not folding.wanted(weight, bias):
        return None
    _check_samples(folding, func, input, weight)
    space = weight.dim() - 2
    dilations = _each(dilation, space)
    if padding == "same":
        input, padding = _padded_same(input, weight, dilations)
    elif padding == "valid":
        padding = 0
    assert not isinstance(padding, str)
    geometry = Geometry(_each(stride, space), _each(padding, space), dilations, groups)
    return folding.seen(folding.weights.convolution(input, weight, bias, geometry))


@answers(LAYERS, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def transposed_convolution(
    folding: Folding,
    func: Function,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Numbers = 1,
    padding: int | Numbers = 0,
    output_padding: int | Numbers = 0,
    groups: int = 1,
    dilation: int | Numbers = 1,
) -> Tensor | None:
    """Answer a transposed convolution."""
    if not folding.wanted(weight, bias):
        return None
    _check_samples(folding, func, input, weight)
    numbers = (_each(n, weight.dim() - 2) for n in (stride, padding, dilation, output_padding))
    strides, paddings, dilations, beyond = numbers
    geometry = Geometry(strides, paddings, dilations, groups, True, beyond)
    return folding.seen(folding.weights.convolution(input, weight, bias, geometry))


@answers(LAYERS, F.embedding)
def embedding(
    folding: Folding,
    func: Function,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    """Answer `F.embedding`."""
    if not folding.wanted(weight):
        return None
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise UnsupportedModel("embedding with max_norm, scale_grad_by_freq or sparse gradients")
    folding.split(func, input)
    return folding.weights.embedding(input, weight, padding_idx)


@answers(LAYERS, F.batch_norm)
def batch_norm(
    folding: Folding,
    func: Function,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Answer `F.batch_norm`, with each worker's own statistics."""
    folding.split(func, input, samples=True)
    statistics = (
        _statistics(folding, running_mean, training),
        _statistics(folding, running_var, training),
    )
    if training:
        return folding.weights.batch_norm(input, weight, bias, statistics, (momentum, eps))
    own = folding.fold.apart(input)  # [outer, L, inner, c, ...]
    mean, var = (
        s.view(len(s), 1, -1, *[1] * (input.dim() - 2)) for s in statistics if s is not None
    )
    out = folding.fold.joined((own - mean) * (var + eps).rsqrt())
    return _affine(folding, out, weight, bias, 1, 2)


def _statistics(folding: Folding, given: Tensor | None, changed: bool) -> Tensor | None:
    if given is None:
        return None
    name = folding.buffer(given)
    if name is None:
        raise UnsupportedModel("batch_norm has running statistics that are no buffer of the model")
    folding.statistical.add(name)
    if changed:
        folding.kept.add(name)
    return folding.buffers[name]


@answers(LAYERS, F.layer_norm)
def layer_norm(
    folding: Folding,
    func: Function,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """Answer `F.layer_norm`."""
    if not folding.wanted(weight, bias):
        return None
    folding.split(func, input)
    out = F.layer_norm(input, normalized_shape, None, None, eps)
    start = input.dim() - len(normalized_shape)
    return _affine(folding, out, weight, bias, start, input.dim())


@answers(LAYERS, F.rms_norm)
def rms_norm(
    folding: Folding,
    func: Function,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    """Answer `F.rms_norm`."""
    if not folding.wanted(weight):
        return None
    folding.split(func, input)
    out = F.rms_norm(input, list(normalized_shape), None, eps)
    start = input.dim() - len(normalized_shape)
    return _affine(folding, out, weight, None, start, input.dim())


@answers(LAYERS, F.group_norm)
def group_norm(
    folding: Folding,
    func: Function,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """Answer `F.group_norm`."""
    if not folding.wanted(weight, bias):
        return None
    folding.split(func, input)
    out = F.group_norm(input, num_groups, None, None, eps)
    return _affine(folding, out, weight, bias, 1, 2)


def _affine(
    folding: Folding,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    start: int,
    end: int,
) -> Tensor:
    """Return `x * weight + bias`, which have the dimensions `start` to `end` of `x`."""
    n, rest = math.prod(x.shape[start:end]), math.prod(x.shape[end:])
    if folding.wanted(weight, bias):
        return folding.weights.affine(x, weight, bias, n, rest)
    shape = [1] * start + list(x.shape[start:end]) + [1] * (x.dim() - end)
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


@answers(LAYERS, Tensor.add_)
def add_(
    folding: Folding, func: Function, own: Tensor, *args: object, **kwargs: object
) -> Tensor | None:
    """Add to a buffer, such as the number of batches that BatchNorm saw, for every worker."""
    name = folding.buffer(own)
    if name is None and any(folding.is_weight(value) for value in args):
        return elementwise(folding, func, own, *args, **kwargs)
    if name is None or len(args) != 1 or kwargs or isinstance(args[0], Tensor):
        return None  # a change of a buffer that `check_buffers` finds
    folding.kept.add(name)
    func(folding.buffers[name], *args)
    return own


@answers(MIXED, F.prelu)
def prelu(folding: Folding, func: Function, input: Tensor, weight: Tensor) -> Tensor | None:
    """Answer `F.prelu`: x where it is positive, else weight * x."""
    if not (folding.is_weight(weight) and folding.fold.holds(input) and input.dim() > 1):
        return None
    shape = (-1, *[1] * (input.dim() - 2))
    scale = folding.weight(Tensor.reshape, weight, shape)
    scaled = elementwise(folding, Tensor.mul, input, scale)
    return None if scaled is None else input.where(input > 0, scaled)


def _check_samples(folding: Folding, func: Function, input: Tensor, weight: Tensor) -> None:
    if input.dim() != weight.dim():
        raise UnsupportedModel(f"{func.__name__} acts on one sample")
    folding.split(func, input)


def _each(number: int | Numbers, dimensions: int) -> Numbers:
    if isinstance(number, int):
        return (number,) * dimensions
    return tuple(number) * (dimensions if len(number) == 1 else 1)


def _padded_same(x: Tensor, weight: Tensor, dilation: Numbers) -> tuple[Tensor, Numbers]:
    """Return what to convolve, and with which padding, so that the size stays the same."""
    totals = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    if all(total % 2 == 0 for total in totals):
        return x, tuple(total // 2 for total in totals)
    sides = [n for total in reversed(totals) for n in (total // 2, total - total // 2)]
    return F.pad(x, sides), (0,) * len(totals)
