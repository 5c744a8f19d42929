"""Collects the gradients of one pass over several workers.

Letters: L workers of the pass, m vectors of one worker and use, i inputs, o outputs.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from .contract import Tensors, UnsupportedModel

_STEPS = 4  # uses of one weight that make a sequence


class Rows:
    """The gradients {parameter: [L, *shape]} of a pass: what is written first, the rest is added.

    `finish` must be called before they are read.
    """

    def __init__(self, params: Tensors, values: Tensors) -> None:
        self.values = values  # {name: [L, *shape]}, whatever was in them
        self.names = {id(parameter): name for name, parameter in params.items()}
        self._written: set[str] = set()
        self._uses: dict[str, int] = {}  # of each weight in products, in the forward pass
        self._later: dict[str, list[tuple[Tensor, Tensor]]] = {}  # factors, summed up by `finish`

    def name(self, parameter: Tensor | None) -> str | None:
        """Return the name of a parameter whose gradient is wanted, None for any other tensor."""
        return self.names.get(id(parameter))

    def use(self, name: str | None) -> None:
        """Count a use of a weight in a product, before any gradient of it comes."""
        if name is not None:
            self._uses[name] = self._uses.get(name, 0) + 1

    @property
    def recurrent(self) -> bool:
        """Whether a weight was used at every step of a sequence, or nearly so."""
        return max(self._uses.values(), default=0) >= _STEPS

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
        """Add each worker's matrix product: `left` [L, o, m] times `right` [L, m, i].

        The parameter has o * i elements in that order. Where a weight was used several times, for a
        few vectors each, as in a recurrent cell, writing the product costs more than making it: the
        factors are laid end to end, and `finish` makes one product of them.
        """
        o, m, i = *left.shape[1:], right.shape[2]
        if self._uses.get(name, 0) > 1 and m * (o + i) < o * i:
            self._row(name)  # which declines a gradient of a gradient
            self._later.setdefault(name, []).append((left, right))
            return
        self._contract(name, left, right)

    def _contract(self, name: str, left: Tensor, right: Tensor) -> None:
        row = self._row(name).view(len(left), left.shape[1], right.shape[2])
        row.baddbmm_(left, right, beta=0 if self._first(name) else 1)

    def finish(self) -> None:
        """Add what was put off, and put zeros where a parameter was not used."""
        with torch.no_grad():
            for name, factors in self._later.items():
                lefts, rights = zip(*factors, strict=True)
                self._contract(name, torch.cat(lefts, 2), torch.cat(rights, 1))
        self._later.clear()
        for name in self.values.keys() - self._written:
            self.values[name].zero_()

    @property
    def unused(self) -> list[str]:
        """The parameters that got no gradient, once this is finished."""
        return [name for name in self.values if name not in self._written]

    def _row(self, name: str) -> Tensor:
        if torch.is_grad_enabled():  # only when a gradient is to be differentiated again
            raise UnsupportedModel(f"{name} is in a gradient of a gradient")
        return self.values[name]

    def _first(self, name: str) -> bool:
        first = name not in self._written
        self._written.add(name)
        return first
