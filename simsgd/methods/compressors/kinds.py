"""Values of several segments, of which those of one kind go together.

Letters: L workers hosted here, S segments, C of one kind.
"""

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Dense, Message
from ...communication.messages.joined import dense_group
from .contract import Aggregated

Shape = tuple[int, ...]  # of a value, and what a kind has in common


def exchanged(
    found: dict[Shape, Tensor], kinds: Sequence[Shape], shapes: Sequence[Shape]
) -> Generator[Message, Aggregated, list[Tensor]]:
    """Yield values [C L, *shape] of each kind; return the means over workers, [1, *shape] each.

    `kinds` and `shapes` are those of the S segments.
    """
    workers = len(found[kinds[0]]) // kinds.count(kinds[0])
    cuts = Cuts(tuple(torch.Size(shape).numel() for shape in shapes))
    _, mean = yield dense_group(cuts, Dense.of(end_to_end(found, kinds, workers)))
    pieces = zip(cuts.split(mean), shapes, strict=True)
    return [own.unflatten(1, shape) for own, shape in pieces]


def by_kind(kinds: Sequence[Shape], values: Sequence[Tensor]) -> dict[Shape, Tensor]:
    """Return the values of each kind, one below the other."""
    own: dict[Shape, list[Tensor]] = {}
    for kind, value in zip(kinds, values, strict=True):
        own.setdefault(kind, []).append(value)
    return {kind: torch.cat(found) for kind, found in own.items()}


def apart(
    values: dict[Shape, Tensor], kinds: Sequence[Shape], change: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return `change` of [C, ...] of each kind, as [1, ...] of each segment."""
    rows = {kind: iter(change(own).split(1)) for kind, own in values.items()}
    return [next(rows[kind]) for kind in kinds]


def end_to_end(values: dict[Shape, Tensor], kinds: Sequence[Shape], workers: int) -> Tensor:
    """Return [C workers, ...] of each kind as one [workers, ...], in the order of segments."""
    rows = {kind: iter(own.split(workers)) for kind, own in values.items()}
    return torch.cat([next(rows[kind]).flatten(1) for kind in kinds], dim=1)
