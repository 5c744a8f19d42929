"""How a model's gradients are cut into segments, the pieces that a compressor sees.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .settings import GRANULARITIES, require


@dataclass(frozen=True)
class Segment:
    """One piece of the gradient: a parameter tensor, or several laid end to end."""

    name: str
    parameters: tuple[str, ...]  # names of the parameters inside, in order
    shapes: tuple[torch.Size, ...]  # their shapes
    dense: bool  # exempt from compression: always sent whole

    @property
    def n(self) -> int:
        """Number of elements."""
        return sum(map(math.prod, self.shapes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter, (n,) if there are several."""
        return tuple(self.shapes[0]) if len(self.shapes) == 1 else (self.n,)


@dataclass(frozen=True)
class Layout:
    """The segments of a model, and the way from its parameters there and back."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, torch.Size], granularity: str, prune_1d: bool) -> "Layout":
        """Return the layout of parameters with the given shapes.

        `granularity` is "layer", one segment for each tensor, or "model", one for all that is
        compressed. Tensors of fewer than two dimensions (biases, BatchNorm) go dense unless
        `prune_1d`.
        """
        require(granularity in GRANULARITIES, "granularity", granularity, "must be layer or model")
        exempt = [name for name, shape in shapes.items() if len(shape) < 2 and not prune_1d]
        chosen = [name for name in shapes if name not in exempt]
        if granularity == "layer":
            return cls(tuple(_segment(name, [name], shapes, name in exempt) for name in shapes))
        whole = [_segment("model", chosen, shapes, dense=False)] if chosen else []
        return cls((*whole, *(_segment(name, [name], shapes, dense=True) for name in exempt)))

    @property
    def n(self) -> int:
        """Number of elements of all segments."""
        return sum(segment.n for segment in self.segments)

    def split(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the segments [L, n] of per-worker values {name: [L, *shape]}."""
        return [
            _end_to_end([_flat(values[name]) for name in segment.parameters])
            for segment in self.segments
        ]

    def join(self, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return {name: [..., *shape]} of one [..., n] for each segment."""
        values: dict[str, Tensor] = {}
        for segment, piece in zip(self.segments, pieces, strict=True):
            sizes = [math.prod(shape) for shape in segment.shapes]
            parts = piece.split(sizes, dim=-1)
            for name, shape, part in zip(segment.parameters, segment.shapes, parts, strict=True):
                values[name] = part.reshape((*part.shape[:-1], *shape))
        return values


def _segment(
    name: str, parameters: Sequence[str], shapes: Mapping[str, torch.Size], dense: bool
) -> Segment:
    return Segment(name, tuple(parameters), tuple(shapes[p] for p in parameters), dense)


def _end_to_end(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _flat(value: Tensor) -> Tensor:
    return value.reshape(len(value), -1)  # also of a scalar parameter, [L]
