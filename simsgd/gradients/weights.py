"""The weights that a folded pass knows: parameters, and what is computed from these alone.

Letters: L workers of the pass, b samples each, c channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from .convolution import Geometry

Statistics = tuple[Tensor | None, Tensor | None]  # running mean and variance, [L, c] each
Layer = Callable[..., object]  # of torch, such as F.linear


class Weights(ABC):
    """What layers do with them, so that each worker's gradients stay apart.

    `names` has all that are known, by `id`. In layers, `x` is [L * b, ...].
    """

    names: dict[int, str]

    def name(self, weight: Tensor | None) -> str | None:
        """Return the name of a weight, None for any other tensor."""
        return self.names.get(id(weight))

    @abstractmethod
    def own(self, weight: Tensor) -> Tensor:
        """Return a weight as each worker's own, [L, *shape]."""

    @abstractmethod
    def computed(self, func: Layer, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call a function of weights and constants; tensors in its result are weights too."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `F.linear(x, weight, bias)`."""

    @abstractmethod
    def convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        """Return the convolution of `x` [L * b, c, ...]."""

    @abstractmethod
    def embedding(self, index: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        """Return `F.embedding(index, weight)`; that of `padding` gets no gradient."""

    @abstractmethod
    def batch_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        settings: tuple[float, float],
    ) -> Tensor:
        """Return `x` [L * b, c, ...] normalized in training, each worker's part by itself.

        The statistics are updated in place; `settings` are momentum and epsilon.
        """

    @abstractmethod
    def affine(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, rest: int
    ) -> Tensor:
        """Return `x * weight + bias`; these have n elements, before the last `rest` of `x`."""
