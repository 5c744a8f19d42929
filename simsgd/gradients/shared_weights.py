"""Weights that all workers share: one call forward, each worker's own gradients back.

Letters: L workers of the pass, b samples each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .convolution import Convolution, Geometry
from .fold import Fold
from .grad_accumulator import Rows
from .linear import Embedding, Linear
from .normalization import Affine, batch_norm
from .plan import Plan
from .trees import leaves
from .weights import Layer, Statistics, Weights


class SharedWeights(Weights):
    """Weights whose gradients come together in `rows`."""

    def __init__(self, rows: Rows, fold: Fold, plan: Plan) -> None:
        self.rows, self.fold, self.plan = rows, fold, plan
        self.names = rows.names

    def own(self, weight: Tensor) -> Tensor:
        """Return a weight as each worker's own, [L, *shape], in the same memory."""
        return self.rows.own(weight)

    def computed(self, func: Layer, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function of weights and constants; tensors in its result are weights too."""
        out = func(*args, **kwargs)
        for tensor in leaves(out):
            if tensor.requires_grad and id(tensor) not in self.names:
                self.rows.derive(tensor)
        return out

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `F.linear(x, weight, bias)`."""
        return _tensor(Linear.apply(x, *self._leaves(weight, bias), self.rows, self.fold))

    def convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        """Return the convolution of `x` [L * b, c, ...]."""
        used = self._leaves(weight, bias)
        return _tensor(Convolution.apply(x, *used, self.rows, self.fold, geometry, self.plan))

    def embedding(self, index: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        """Return `F.embedding(index, weight)`; that of `padding` gets no gradient."""
        leaf = self.rows.leaf(weight)
        return _tensor(Embedding.apply(index, leaf, self.rows, self.fold, padding))

    def batch_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        settings: tuple[float, float],
    ) -> Tensor:
        """Return `x` [L * b, c, ...] normalized in training, each worker's part by itself."""
        scale, shift = self._leaves(weight, bias)
        return batch_norm(x, scale, shift, statistics, self.rows, self.fold, settings, self.plan)

    def affine(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, rest: int
    ) -> Tensor:
        """Return `x * weight + bias`; these have n elements, before the last `rest` of `x`."""
        used = self._leaves(weight, bias)
        return _tensor(Affine.apply(x, *used, self.rows, self.fold, (n, rest)))

    def _leaves(self, weight: Tensor | None, bias: Tensor | None) -> list[Any]:
        return [None if t is None else self.rows.leaf(t) for t in (weight, bias)]


def _tensor(out: Any) -> Tensor:
    whole: Tensor = out
    return whole
