"""Answers what a model calls while several workers' batches go through it as one.

Functions that use a parameter are answered here, so that their backward keeps the workers apart;
dropout draws from each worker's own stream; all else goes through as it is.

Letters: L workers of the pass, b samples each, c channels.
"""

import math
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..keyed_random import uniform
from .contract import Tensors, UnsupportedModel
from .convolution import Convolution, Numbers
from .dropout import Function, KeyedDropout
from .grad_accumulator import Rows
from .linear import Embedding, Linear
from .normalization import Affine, batch_norm


class Folded(KeyedDropout):
    """Within it, a forward pass of [L * b, ...] is that of L workers with b samples each.

    `buffers` {name: [L, *shape]} are updated in place; the model is to be given `shared`. Those in
    `carried` are [L, b, ...], contiguous: a state of each sample, which the model changes itself.
    """

    def __init__(
        self, rows: Rows, buffers: Tensors, keys: Tensor, samples: int, carried: Sequence[str] = ()
    ) -> None:
        super().__init__(keys)
        self.rows, self.buffers = rows, buffers
        self.workers, self.samples = len(keys), samples  # L and L * b
        states = {name: buffers[name].flatten(0, 1) for name in carried}  # views, [L * b, ...]
        self.shared = {name: buffer[0] for name, buffer in buffers.items()} | states
        self.foreign: dict[str, str] = {}  # parameters that another function was given
        self.largest = 0  # elements of the largest result of a layer
        self._names = {id(buffer): name for name, buffer in self.shared.items()}
        self._given = dict(self.shared)
        self._versions = {name: buffer._version for name, buffer in self.shared.items()}
        self._kept: set[str] = set(carried)  # buffers that are updated for every worker
        self._statistical: set[str] = set()  # those that differ between workers
        self._read: set[str] = set()  # those that another function was given

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Answer calls of functions that use parameters or a worker's randomness or statistics."""
        known = _KNOWN.get(func)
        if known is not None:
            return known(self, func, *args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__":
            self._note(func, args)
        return super().__torch_function__(func, types, args, kwargs)

    def check_buffers(self) -> None:
        """Raise `UnsupportedModel` if a buffer changed for one worker, or was read for all."""
        for name in self._statistical & self._read:
            raise UnsupportedModel(f"the buffer {name} is read by something other than batch_norm")
        for name, buffer in self._given.items():
            if self.shared[name] is not buffer:
                raise UnsupportedModel(f"the buffer {name} is made anew by the model")
            if name not in self._kept and buffer._version != self._versions[name]:
                raise UnsupportedModel(
                    f"the buffer {name} is changed by something onepass does not know"
                )

    def _note(self, func: Callable[..., object], args: Sequence[object]) -> None:
        """Remember which parameters and buffers a function was given that is not answered here."""
        for given in args:
            if id(given) in self.rows.names:
                self.foreign[self.rows.names[id(given)]] = getattr(func, "__name__", str(func))
            elif id(given) in self._names:
                self._read.add(self._names[id(given)])

    def _draws(self, n: int) -> Tensor:
        own, rest = divmod(n, self.workers)
        if rest:
            raise UnsupportedModel("dropout acts on something that is not one part for each sample")
        return uniform(self.key + self.calls, own).flatten()

    def _wanted(self, *used: Tensor | None) -> bool:
        """Return whether to answer a call with these weights: some of ours, none of unknown origin.

        Of unknown origin is one that was computed from a parameter, which autograd finds.
        """
        ours = [self.rows.name(t) is not None for t in used]
        strange = [
            t is not None and t.requires_grad and not own for t, own in zip(used, ours, strict=True)
        ]
        return any(ours) and not any(strange)

    def _split(self, func: Function, x: Tensor, samples: bool = False) -> None:
        """Raise `UnsupportedModel` unless `x` is of samples, or of parts of them, at first."""
        even = x.dim() > 0 and (len(x) == self.samples if samples else len(x) % self.samples == 0)
        if not even:
            raise UnsupportedModel(
                f"{func.__name__} acts on {tuple(x.shape)}, which is not one part for each sample"
            )

    def _seen(self, out: Tensor) -> Tensor:
        self.largest = max(self.largest, out.numel())
        return out

    def _linear(
        self, func: Function, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        if not self._wanted(weight, bias):
            return func(input, weight, bias)
        self._split(func, input)
        return self._seen(Linear.apply(input, weight, bias, self.rows, self.workers))

    def _convolution(
        self,
        func: Function,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Numbers = 1,
        padding: str | int | Numbers = 0,
        dilation: int | Numbers = 1,
        groups: int = 1,
    ) -> Tensor:
        if not self._wanted(weight, bias):
            return func(input, weight, bias, stride, padding, dilation, groups)
        if input.dim() != weight.dim():
            raise UnsupportedModel(f"{func.__name__} acts on one sample")
        self._split(func, input)
        space = weight.dim() - 2
        strides, dilations = _each(stride, space), _each(dilation, space)
        if padding == "same":
            input, padding = _padded_same(input, weight, dilations)
        elif padding == "valid":
            padding = 0
        assert not isinstance(padding, str)
        geometry = strides, _each(padding, space), dilations, groups
        return self._seen(Convolution.apply(input, weight, bias, self.rows, self.workers, geometry))

    def _embedding(
        self,
        func: Function,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        if not self._wanted(weight):
            return func(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise UnsupportedModel(
                "embedding with max_norm, scale_grad_by_freq or sparse gradients"
            )
        self._split(func, input)
        out: Tensor = Embedding.apply(input, weight, self.rows, self.workers, padding_idx)
        return out

    def _batch_norm(
        self,
        func: Function,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        self._split(func, input, samples=True)
        statistics = (
            self._statistics(running_mean, training),
            self._statistics(running_var, training),
        )
        if training:
            return batch_norm(
                input,
                weight,
                bias,
                statistics,
                self.rows,
                self.workers,
                (momentum, eps),
            )
        own = input.unflatten(0, (self.workers, -1))  # [L, b, c, ...]
        mean, var = (
            s.view(len(s), 1, -1, *[1] * (input.dim() - 2)) for s in statistics if s is not None
        )
        out = ((own - mean) * (var + eps).rsqrt()).flatten(0, 1)
        return self._affine(out, weight, bias, 1, 2)

    def _statistics(self, given: Tensor | None, changed: bool) -> Tensor | None:
        if given is None:
            return None
        name = self._names.get(id(given))
        if name is None:
            raise UnsupportedModel(
                "batch_norm has running statistics that are no buffer of the model"
            )
        self._statistical.add(name)
        if changed:
            self._kept.add(name)
        return self.buffers[name]

    def _layer_norm(
        self,
        func: Function,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if not self._wanted(weight, bias):
            return func(input, normalized_shape, weight, bias, eps)
        self._split(func, input)
        out = F.layer_norm(input, normalized_shape, None, None, eps)
        return self._affine(out, weight, bias, input.dim() - len(normalized_shape), input.dim())

    def _rms_norm(
        self,
        func: Function,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if not self._wanted(weight):
            return func(input, normalized_shape, weight, eps)
        self._split(func, input)
        out = F.rms_norm(input, list(normalized_shape), None, eps)
        return self._affine(out, weight, None, input.dim() - len(normalized_shape), input.dim())

    def _group_norm(
        self,
        func: Function,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if not self._wanted(weight, bias):
            return func(input, num_groups, weight, bias, eps)
        self._split(func, input)
        return self._affine(F.group_norm(input, num_groups, None, None, eps), weight, bias, 1, 2)

    def _affine(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, start: int, end: int
    ) -> Tensor:
        """Return `x * weight + bias`, which have the dimensions `start` to `end` of `x`."""
        n, rest = math.prod(x.shape[start:end]), math.prod(x.shape[end:])
        if not self._wanted(weight, bias):
            shape = [1] * start + list(x.shape[start:end]) + [1] * (x.dim() - end)
            x = x if weight is None else x * weight.reshape(shape)
            return x if bias is None else x + bias.reshape(shape)
        out: Tensor = Affine.apply(x, weight, bias, self.rows, (self.workers, n, rest))
        return out

    def _add_(self, func: Function, own: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Add to a buffer, such as the number of batches that BatchNorm saw, for every worker."""
        name = self._names.get(id(own))
        if name is None:
            return func(own, *args, **kwargs)
        if len(args) != 1 or kwargs or isinstance(args[0], Tensor):
            return func(own, *args, **kwargs)  # which `check_buffers` finds
        self._kept.add(name)
        func(self.buffers[name], *args)
        return own


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


_KNOWN: dict[Callable[..., object], Function] = {
    F.linear: Folded._linear,
    F.conv1d: Folded._convolution,
    F.conv2d: Folded._convolution,
    F.conv3d: Folded._convolution,
    F.embedding: Folded._embedding,
    F.batch_norm: Folded._batch_norm,
    F.layer_norm: Folded._layer_norm,
    F.rms_norm: Folded._rms_norm,
    F.group_norm: Folded._group_norm,
    Tensor.add_: Folded._add_,
}
