"""Weights that each worker has of its own: one pass with [L, *shape] weights.

Products become batched ones and convolutions grouped ones. Autograd finds the gradients, but for
those of linear layers, which are written where they belong.

Letters: L workers of the pass, b samples each, m vectors of one worker, i inputs, o outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batching import quiet_batching
from .contract import Tensors
from .convolution import Geometry
from .fold import Fold
from .grad_accumulator import Rows
from .trees import leaves
from .weights import Layer, Statistics, Weights


class OwnWeights(Weights):
    """Weights [L, *shape], for which the model has stand-ins [*shape].

    `params` {name: [L, *shape]} are leaves whose gradients are wanted; `standing` are the model's
    parameters of the same names, of which `rows` are the gradients.
    """

    def __init__(self, params: Tensors, standing: Tensors, rows: Rows, fold: Fold) -> None:
        self.rows, self.fold = rows, fold
        self.names = {id(p): name for name, p in standing.items() if name in params}
        self._own = {id(p): params[name] for name, p in standing.items() if name in params}
        self._kept: list[Tensor] = []  # stand-ins, which nobody else may keep

    def own(self, weight: Tensor) -> Tensor:
        """Return a weight as each worker's own, [L, *shape]."""
        return self._own[id(weight)]

    def computed(self, func: Layer, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function of weights and constants; tensors in its result are weights too."""
        out = func(*args, **kwargs)
        found = leaves(out)
        if any(t.requires_grad and id(t) not in self.names for t in found):
            for standing, own in zip(found, leaves(self._mapped(func, args, kwargs)), strict=True):
                if standing.requires_grad and id(standing) not in self.names:
                    self._kept.append(standing)
                    self.names[id(standing)] = f"derived {len(self._kept)}"
                    self._own[id(standing)] = own
        return out

    def _mapped(self, func: Layer, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return what a function gives for each worker's weights, [L, ...] each."""
        given, form = tree_flatten((tuple(args), dict(kwargs)))
        places = [n for n, value in enumerate(given) if id(value) in self.names]

        def one(*own: Tensor) -> object:
            every = [*given]
            for place, value in zip(places, own, strict=True):
                every[place] = value
            own_args, own_kwargs = tree_unflatten(every, form)
            return func(*own_args, **own_kwargs)

        with quiet_batching():
            return torch.func.vmap(one)(*(self.own(given[n]) for n in places))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `F.linear(x, weight, bias)`."""
        rows = self.fold.rows(x)  # [L, m, ..., i]
        own, shift = self._each(weight), None if bias is None else self._each(bias)
        names = self.rows.name(weight), self.rows.name(bias)
        out: Tensor = OwnLinear.apply(rows.flatten(1, -2), own, shift, self.rows, names)
        return self.fold.back(out.unflatten(1, rows.shape[1:-1]))

    def convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        """Return the convolution of `x` [L * b, c, ...], workers being groups of channels."""
        wide = geometry.widened(self.fold.workers).convolved(
            self.fold.wide(x), self._each(weight).flatten(0, 1), self._wide(bias)
        )
        return self.fold.narrow(wide)

    def embedding(self, index: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        """Return `F.embedding(index, weight)`, of one long table."""
        table = self.own(weight)  # [L, entries, n]
        first = torch.arange(len(table), device=index.device).mul_(table.shape[1])
        apart = self.fold.apart(index)
        place = self.fold.joined(apart + first.view(-1, *[1] * (apart.dim() - 2)))
        out = F.embedding(place, table.flatten(0, 1))
        if padding is None:
            return out
        padded = (index == padding % table.shape[1]).unsqueeze(-1)
        return torch.where(padded, out.detach(), out)

    def batch_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        settings: tuple[float, float],
    ) -> Tensor:
        """Return `x` [L * b, c, ...] normalized in training, workers being channels."""
        mean, variance = (None if s is None else s.view(-1) for s in statistics)
        momentum, epsilon = settings
        out = F.batch_norm(
            self.fold.wide(x),
            mean,
            variance,
            self._wide(weight),
            self._wide(bias),
            True,
            momentum,
            epsilon,
        )
        return self.fold.narrow(out)

    def affine(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, rest: int
    ) -> Tensor:
        """Return `x * weight + bias`; these have n elements, before the last `rest` of `x`."""
        outer = self.fold.each if self.fold.by_turns else 1
        own = x.reshape(outer, self.fold.workers, -1, n, rest)
        scale, shift = (
            None if t is None else self._each(t).reshape(-1, 1, n, 1) for t in (weight, bias)
        )
        own = own if scale is None else own * scale
        return (own if shift is None else own + shift).view(x.shape)

    def _each(self, weight: Tensor) -> Tensor:
        """Return [L, *shape] of a weight, or of a constant."""
        own = self._own.get(id(weight))
        return weight.expand(self.fold.workers, *weight.shape) if own is None else own

    def _wide(self, weight: Tensor | None) -> Tensor | None:
        return None if weight is None else self._each(weight).flatten(0, 1)


class OwnLinear(torch.autograd.Function):
    """A linear layer a worker, whose backward adds the gradients of parameters to `rows`."""

    @staticmethod
    def forward(
        node: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Rows,
        names: tuple[str | None, str | None],
    ) -> Tensor:
        """Return [L, m, o] of `x` [L, m, i], `weight` [L, o, i] and `bias` [L, o].

        `names` are those of weight and bias in `rows`; of any other, autograd gets the gradient.
        """
        node.save_for_backward(x, weight)
        node.rows, node.names = rows, names
        rows.use(names[0])
        if bias is None:
            return x.bmm(weight.transpose(1, 2))
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `x` and of what has no place in `rows`."""
        x, weight = node.saved_tensors
        back = slope.bmm(weight) if node.needs_input_grad[0] else None
        found: list[Tensor | None] = [None, None]
        if node.names[0] is not None:
            node.rows.add_product(node.names[0], slope.transpose(1, 2), x)
        elif node.needs_input_grad[1]:
            found[0] = slope.transpose(1, 2).bmm(x)
        if node.names[1] is not None:
            node.rows.add_sum(node.names[1], slope)
        elif node.needs_input_grad[2]:
            found[1] = slope.sum(1)
        return back, *found, None, None
