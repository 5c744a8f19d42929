"""Where the gradients of one pass over several workers land, and what that pass declines.

Letters: L workers of the pass.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from .contract import Declined, Tensors


class Rows:
    """The gradients {parameter: [L, *shape]} of a pass: what is written first, the rest is added.

    `finish` must be called before they are read.
    """

    def __init__(self, params: Tensors, values: Tensors) -> None:
        self.values = values  # {name: [L, *shape]}, whatever was in them
        self.names = {id(parameter): name for name, parameter in params.items()}
        self._written: set[str] = set()

    def name(self, parameter: Tensor | None) -> str | None:
        """Return the name of a parameter whose gradient is wanted, None for any other tensor."""
        return self.names.get(id(parameter))

    def add(self, name: str, gradient: Tensor) -> None:
        """Add each worker's `gradient`, [L, *shape]."""
        row = self._row(name)
        if self._first(name):
            row.copy_(gradient)
        else:
            row.add_(gradient)

    def add_each(self, name: str, gradients: Iterable[Tensor]) -> None:
        """Add the gradients of one worker after the other, [*shape] each."""
        row = self._row(name)
        first = self._first(name)
        for own, gradient in zip(row, gradients, strict=True):
            if first:
                own.copy_(gradient)
            else:
                own.add_(gradient)

    def add_sum(self, name: str, terms: Tensor) -> None:
        """Add the sums over the second dimension of `terms`, [L, m, *shape]."""
        row = self._row(name)
        if self._first(name):
            torch.sum(terms, 1, out=row)
        else:
            row.add_(terms.sum(1))

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add each worker's matrix product: `left` [L, r, m] times `right` [L, m, s].

        The parameter has r * s elements in that order.
        """
        row = self._row(name).view(len(left), left.shape[1], right.shape[2])
        row.baddbmm_(left, right, beta=0 if self._first(name) else 1)

    def finish(self) -> None:
        """Put zeros where a parameter was not used."""
        for name in self.values.keys() - self._written:
            self.values[name].zero_()

    def _row(self, name: str) -> Tensor:
        if torch.is_grad_enabled():  # only when a gradient is to be differentiated again
            raise Declined(f"{name} is in a gradient of a gradient")
        return self.values[name]

    def _first(self, name: str) -> bool:
        first = name not in self._written
        self._written.add(name)
        return first
