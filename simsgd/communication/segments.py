"""Cuts a model's gradients into segments, the pieces that a compressor sees.

Letters: L workers hosted here, n elements of one segment.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..settings import SettingError, size_in_bytes

Shapes = Mapping[str, torch.Size]


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

    @property
    def members(self) -> "tuple[Segment, ...]":
        """The segments that are counted one by one: this one, or those that are joined."""
        return (self,)


@dataclass(frozen=True)
class JoinedSegments(Segment):
    """Several segments laid end to end, which are exchanged together and counted apart."""

    joined: tuple[Segment, ...] = ()

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "JoinedSegments":
        """Return segments of which all go dense, or none, as one."""
        return cls(
            name=", ".join(segment.name for segment in segments),
            parameters=tuple(name for segment in segments for name in segment.parameters),
            shapes=tuple(shape for segment in segments for shape in segment.shapes),
            dense=segments[0].dense,
            joined=tuple(segments),
        )

    @property
    def members(self) -> tuple[Segment, ...]:
        """The segments that are counted one by one."""
        return self.joined


@dataclass(frozen=True)
class Layout:
    """The segments of a model, and the way from its parameters there and back."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(
        cls,
        shapes: Shapes,
        granularity: str,
        compress_if: str,
        itemsize: int = 4,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> "Layout":
        """Return the layout of parameters with the given shapes.

        `granularity` is "layer", one segment for each tensor; "model", one for all that is
        compressed; or "bucket:25MB", neighbors together up to that size at `itemsize` bytes an
        element. `dtypes` are those of the parameters, if they differ: a segment has one alone.
        `compress_if` is "dim>1", "all" or "numel>=N"; tensors that it does not cover go
        dense, each by itself. Raises `SettingError` for any other text.
        """
        covered = _rule(compress_if)
        chosen = [name for name, shape in shapes.items() if covered(shape)]
        groups = _groups_by_dtype(
            {n: shapes[n] for n in chosen}, granularity, itemsize, dtypes or {}
        )
        segments = [_segment(name, group, shapes, dense=False) for name, group in groups.items()]
        exempt = [_segment(n, [n], shapes, dense=True) for n in shapes if n not in chosen]
        order = {name: place for place, name in enumerate(shapes)}
        return cls(tuple(sorted([*segments, *exempt], key=lambda s: order[s.parameters[0]])))

    def require_compressed(self, compressor: str, compress_if: str) -> None:
        """Raise `SettingError` for a compressor, but none, where all segments go dense."""
        if compressor == "none" or not all(segment.dense for segment in self.segments):
            return
        rule, fix = "covers no parameter of the model", "set compress_if all, or another rule"
        raise SettingError("compress_if", compress_if, rule, fix)

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


def _rule(compress_if: str) -> Callable[[torch.Size], bool]:
    if compress_if == "all":
        return lambda shape: True
    read = re.fullmatch(r"\s*(dim|numel)\s*(>=?)\s*(\d+)\s*", compress_if, re.ASCII)
    if read is None:
        rule = "must be all, dim>N or numel>=N"
        raise SettingError("compress_if", compress_if, rule, "for example dim>1 or numel>=1000")
    measure = len if read[1] == "dim" else math.prod
    least = int(read[3]) + (read[2] == ">")
    return lambda shape: measure(shape) >= least


def _groups_by_dtype(
    shapes: Shapes, granularity: str, itemsize: int, dtypes: Mapping[str, torch.dtype]
) -> dict[str, list[str]]:
    """Return the parameters of each segment, of one dtype, under its name."""
    kinds: dict[torch.dtype | None, dict[str, torch.Size]] = {}
    for name, shape in shapes.items():
        kinds.setdefault(dtypes.get(name), {})[name] = shape
    if len(kinds) < 2 or granularity == "layer":
        return _groups(shapes, granularity, itemsize)
    groups = {}
    for kind, own in kinds.items():
        assert kind is not None
        found = _groups(own, granularity, kind.itemsize)
        short = str(kind).removeprefix("torch.")
        groups.update({f"{name} {short}": names for name, names in found.items()})
    return groups


def _groups(shapes: Shapes, granularity: str, itemsize: int) -> dict[str, list[str]]:
    """Return the parameters of each segment, under its name."""
    if granularity == "layer":
        return {name: [name] for name in shapes}
    if granularity == "model":
        return {"model": list(shapes)} if shapes else {}
    size, groups, filled = _bucket_bytes(granularity), list[list[str]](), math.inf
    for name, shape in shapes.items():
        taken = math.prod(shape) * itemsize
        if filled + taken > size:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += taken
    return {f"bucket {number}": group for number, group in enumerate(groups)}


def _bucket_bytes(granularity: str) -> int:
    kind, colon, size = granularity.partition(":")
    if kind.lower() != "bucket" or not colon:
        rule = "must be layer, model or bucket:SIZE"
        raise SettingError("granularity", granularity, rule, "for example bucket:25MB")
    return size_in_bytes("granularity", f"bucket:{size}", "bucket:")


def _segment(name: str, group: Sequence[str], shapes: Shapes, dense: bool) -> Segment:
    return Segment(name, tuple(group), tuple(shapes[p] for p in group), dense)


def _end_to_end(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _flat(value: Tensor) -> Tensor:
    return value.reshape(len(value), -1)  # also of a scalar parameter, [L]
