"""Gradients of all parameters end to end: one [L, P] for each dtype, and views of it by name.

Letters: L workers hosted here, P numbers of all parameters of one dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FlatRows:
    """One [L, P] for each dtype, parameters in their order, and what lies in it by name."""

    flat: tuple[Tensor, ...]  # [L, P] each
    values: dict[str, Tensor]  # {parameter: [L, *shape]}, views of these

    @classmethod
    def empty(cls, like: Mapping[str, Tensor], workers: int) -> "FlatRows":
        """Return memory, not filled, for a row a worker of tensors like these, [*shape] each."""
        sizes: dict[Kind, int] = {}
        for p in like.values():
            sizes[_kind(p)] = sizes.get(_kind(p), 0) + p.numel()
        return cls.over(
            [
                torch.empty(workers, n, dtype=dtype, device=device)
                for (dtype, device), n in sizes.items()
            ],
            like,
        )

    @classmethod
    def over(cls, flat: Sequence[Tensor], like: Mapping[str, Tensor]) -> "FlatRows":
        """Return what lies in `flat`, one [L, P] for each dtype of tensors like these."""
        rest = {_kind(own): own for own in flat}
        values = {}
        for name, p in like.items():
            own, rest[_kind(p)] = rest[_kind(p)].tensor_split([p.numel()], dim=1)
            values[name] = own.view(len(own), *p.shape)
        return cls(tuple(flat), values)

    def fits(self, like: Mapping[str, Tensor], workers: int) -> bool:
        """Return whether this is as `empty` would make it."""
        return list(self.values) == list(like) and all(
            own.shape == (workers, *p.shape) and _kind(own) == _kind(p)
            for own, p in zip(self.values.values(), like.values(), strict=True)
        )

    def of(self, some: slice) -> "FlatRows":
        """Return the part of some workers, in the same memory."""
        return self.mapped(lambda own: own[some])

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "FlatRows":
        """Return the same of `function` of each [L, P]."""
        like = {name: value[0] for name, value in self.values.items()}
        return FlatRows.over([function(own) for own in self.flat], like)


Kind = tuple[torch.dtype, torch.device]


def _kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tensor.device
