"""Collects the gradients of one pass over several workers that share their weights.

Letters: L workers of the pass, m vectors of one worker and use, i inputs, o outputs.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from .batching import quiet_batching
from .contract import Tensors, UnsupportedModel

_STEPS = 4  # uses of one weight that make a sequence


class PerWorker(torch.autograd.Function):
    """A weight as each worker's own, [L, *shape], whose backward adds the gradients to `rows`."""

    @staticmethod
    def forward(node: "PerWorker", weight: Tensor, rows: "Rows") -> Tensor:
        """Return [L, *shape] of `weight` [*shape], in the same memory."""
        node.rows, node.name = rows, rows.name(weight)
        return weight.detach().unsqueeze(0).expand(rows.workers, *weight.shape)

    @staticmethod
    def backward(node: "PerWorker", slope: Tensor) -> tuple[None, None]:
        """Add what each worker's own was given."""
        assert node.name is not None
        node.rows.add(node.name, slope)
        return None, None

    rows: "Rows"
    name: str | None


class Rows:
    """The gradients {parameter: [L, *shape]} of a pass: what is written first, the rest is added.

    A tensor that was computed from parameters alone can be a weight too; its gradients become
    theirs at the end. `finish` must be called before any are read.
    """

    def __init__(self, params: Tensors, values: Tensors, flat: Tensor | None = None) -> None:
        self.params = params
        self.values = dict(values)  # {name: [L, *shape]}, whatever was in them
        self.workers = len(next(iter(values.values())))
        self.names = {id(parameter): name for name, parameter in params.items()}
        self._flat = flat  # [L, P], to put all of them into at the end
        self._derived: dict[str, tuple[Tensor, Tensor]] = {}  # as computed; as given to autograd
        self._written: set[str] = set()
        self._uses: dict[str, int] = {}  # of each weight in products, in the forward pass
        self._later: dict[str, list[tuple[Tensor, Tensor]]] = {}  # factors, summed up by `finish`

    def name(self, weight: Tensor | None) -> str | None:
        """Return the name of a weight whose gradient is wanted, None for any other tensor."""
        return self.names.get(id(weight))

    def derive(self, tensor: Tensor) -> None:
        """Take a tensor that was computed from parameters alone for a weight."""
        name = f"derived {len(self._derived)}"  # in no parameter's name is a space
        leaf = tensor.detach().requires_grad_()
        self._derived[name] = tensor, leaf
        self.names[id(tensor)] = self.names[id(leaf)] = name

    def leaf(self, weight: Tensor) -> Tensor:
        """Return what autograd is given for a weight: a leaf, from which it goes no further."""
        derived = self._derived.get(self.names.get(id(weight), ""))
        return weight if derived is None else derived[1]

    @property
    def leaves(self) -> list[Tensor]:
        """What autograd is given for weights that are no parameters."""
        return [leaf for _, leaf in self._derived.values()]

    def own(self, weight: Tensor) -> Tensor:
        """Return a weight as each worker's own, [L, *shape]."""
        return _applied(self.leaf(weight), self)

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a weight."""
        return self.params[name].shape if name in self.params else self._derived[name][0].shape

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
        gradient = gradient.reshape(self.workers, *self.shape(name))
        if self._takes(name, gradient):
            return
        row = self._row(name)
        if self._first(name):
            row.copy_(gradient)
        else:
            row.add_(gradient)

    def add_each(self, name: str, gradients: Iterable[Tensor]) -> None:
        """Add the gradients of one worker after the other, [*shape] each."""
        if self._flat is not None:
            self.add(name, torch.stack([*gradients]))
            return
        row = self._row(name)
        first = self._first(name)
        for own, gradient in zip(row, gradients, strict=True):
            if first:
                own.copy_(gradient)
            else:
                own.add_(gradient)

    def add_sum(self, name: str, terms: Tensor) -> None:
        """Add the sums over the second dimension of `terms`, [L, m, *shape]."""
        if self._flat is not None or name in self._written:
            self.add(name, terms.sum(1))
            return
        torch.sum(terms, 1, out=self._row(name))
        self._written.add(name)

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add each worker's matrix product: `left` [L, o, m] times `right` [L, m, i].

        The parameter has o * i elements in that order. Where a weight was used several times, for a
        few vectors each, as in a recurrent cell, writing the product costs more than making it: the
        factors are laid end to end, and `finish` makes one product of them.
        """
        o, m, i = *left.shape[1:], right.shape[2]
        if self._uses.get(name, 0) > 1 and m * (o + i) < o * i:
            self._check(name)
            self._later.setdefault(name, []).append((left, right))
            return
        self._contract(name, left, right)

    def _contract(self, name: str, left: Tensor, right: Tensor) -> None:
        if self._flat is not None:
            self.add(name, torch.bmm(left, right))
            return
        row = self._row(name).view(len(left), left.shape[1], right.shape[2])
        row.baddbmm_(left, right, beta=0 if self._first(name) else 1)

    def finish(self) -> None:
        """Add what was put off, and put zeros where a parameter was not used."""
        with torch.no_grad():
            for name, factors in self._later.items():
                lefts, rights = zip(*factors, strict=True)
                self._contract(name, torch.cat(lefts, 2), torch.cat(rights, 1))
        self._later.clear()
        self._pass_on()
        if self._flat is not None:
            self._join(self._flat)
            return
        for name in self.unused:
            self.values[name].zero_()

    @property
    def unused(self) -> list[str]:
        """The parameters that got no gradient, once this is finished."""
        return [name for name in self.params if name not in self._written]

    def _pass_on(self) -> None:
        """Add what derived weights were given to the parameters that they were computed from."""
        given = [name for name in self._derived if name in self._written]
        trained = {name: p for name, p in self.params.items() if p.requires_grad}
        if not given:
            return
        with quiet_batching():
            found = torch.autograd.grad(
                [self._derived[name][0] for name in given],
                [*trained.values()],
                [self.values[name] for name in given],
                allow_unused=True,
                is_grads_batched=True,
            )
        with torch.no_grad():
            for name, gradient in zip(trained, found, strict=True):
                if gradient is not None:
                    self.add(name, gradient)

    def _join(self, flat: Tensor) -> None:
        """Put all gradients into `flat` [L, P], in one call."""
        zero = flat.new_zeros(1, 1)
        with torch.no_grad():
            pieces = [
                self.values[name].reshape(self.workers, -1)
                if name in self._written
                else zero.expand(self.workers, p.numel())
                for name, p in self.params.items()
            ]
            torch.cat(pieces, 1, out=flat)

    def _takes(self, name: str, gradient: Tensor) -> bool:
        """Keep a gradient as it is, where all are joined at the end; return whether it was kept.

        That of a derived weight is kept in any case: it has no place in the result.
        """
        self._check(name)
        if self._flat is None and name in self.params:
            return False
        self.values[name] = gradient if self._first(name) else self.values[name] + gradient
        return True

    def _row(self, name: str) -> Tensor:
        self._check(name)
        if name not in self.values:
            whole = self._derived[name][0]
            self.values[name] = whole.new_empty(self.workers, *whole.shape)
        return self.values[name]

    def _check(self, name: str) -> None:
        if torch.is_grad_enabled():  # only when a gradient is to be differentiated again
            raise UnsupportedModel(f"{name} is in a gradient of a gradient")

    def _first(self, name: str) -> bool:
        first = name not in self._written
        self._written.add(name)
        return first


def _applied(weight: Tensor, rows: Rows) -> Tensor:
    own: Tensor = PerWorker.apply(weight, rows)
    return own
