"""The power iteration of PowerSGD and Dion for several segments: matrices of one shape go together.

Letters: L workers hosted here, S segments, r rank, P [rows, r] and Q [cols, r] the factors of one
matrix, C matrices of one shape.
"""

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from ... import keyed_random
from ...communication.cuts import Cuts
from ...communication.messages import Dense, LowRank, Message
from ...communication.messages.joined import Joined, coded_group, dense_group
from .contract import Aggregated
from .group import Group
from .powersgd_factors import living, normal, orthonormal, product

Shape = tuple[int, ...]


def power_iteration(
    x: Tensor,
    group: Group,
    shapes: Sequence[tuple[int, int]],
    width: Sequence[int],
    scaled: Callable[[Tensor], Tensor],
) -> Generator[Message, Aggregated, tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Yield the factors of all matrices, end to end in `x` [L, P], as the methods' `rounds` do.

    `shapes` are (rows, cols) of each segment, `width` its r. Returns P, orthonormal, of each
    segment, the mean of M^T P, and that `scaled`, which is kept as Q; all [1, ...].
    """
    workers, states = len(x), group.states
    of_p = [(rows, r) for (rows, _), r in zip(shapes, width, strict=True)]
    of_q = [(cols, r) for (_, cols), r in zip(shapes, width, strict=True)]
    kinds = [(*shape, r) for shape, r in zip(shapes, width, strict=True)]
    pieces = zip(group.cuts.split(x), shapes, strict=True)
    matrices = [own.unflatten(1, shape) for own, shape in pieces]  # [L, rows, cols]
    stacked = _by(kinds, matrices, torch.cat)  # [C L, rows, cols]
    q = _alive([own["q"] for own in states], kinds, group, of_q)

    found = {kind: product(stacked[kind], q[kind]) for kind in stacked}
    mean = yield from _exchanged(found, kinds, of_p)
    p = _apart(_by(of_p, mean, torch.cat), of_p, orthonormal)  # [1, rows, r] each
    every = _by(kinds, [own.expand(workers, -1, -1) for own in p], torch.cat)
    found = {kind: product(stacked[kind].mT, every[kind]) for kind in stacked}
    mean = yield from _exchanged(found, kinds, of_q)
    kept = _apart(_by(of_q, mean, torch.cat), of_q, scaled)
    torch._foreach_copy_(
        [own["q"] for own in states], [own.expand(workers, -1, -1) for own in kept]
    )
    return p, mean, kept


def low_rank_group(group: Group, p: Sequence[Tensor], q: Sequence[Tensor], workers: int) -> Joined:
    """Return the messages of factors [1, ...] of each segment, which all workers came to."""
    parts = [LowRank.of(own, other, workers) for own, other in zip(p, q, strict=True)]
    return coded_group(group.cuts, parts, products(p, q).expand(workers, -1))


def products(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    """Return P Q^T of each segment, end to end, [1, P]."""
    return torch.cat([(own @ other.mT).flatten(1) for own, other in zip(p, q, strict=True)], dim=1)


def _exchanged(
    found: dict[Shape, Tensor], kinds: Sequence[Shape], shapes: Sequence[Shape]
) -> Generator[Message, Aggregated, list[Tensor]]:
    """Yield factors [C L, *shape] of each kind; return the means over workers, [1, *shape] each."""
    workers = len(found[kinds[0]]) // kinds.count(kinds[0])
    cuts = Cuts(tuple(torch.Size(shape).numel() for shape in shapes))
    _, mean = yield dense_group(cuts, Dense.of(_end_to_end(found, kinds, workers)))
    pieces = zip(cuts.split(mean), shapes, strict=True)
    return [own.unflatten(1, shape) for own, shape in pieces]


def _alive(
    factors: Sequence[Tensor], kinds: Sequence[Shape], group: Group, shapes: Sequence[Shape]
) -> dict[Shape, Tensor]:
    """Return factors [C L, *shape] of each kind, with columns of zeros drawn again."""
    cuts = Cuts(tuple(torch.Size(shape).numel() for shape in shapes))
    keys = keyed_random.stacked([step.key.fold_in("q").shared() for step in group.steps])[:1]
    streams, like = cuts.spread(keys), factors[0]  # [1, all]
    place = cuts.place(like.device)
    sizes = cuts.lengths(like.device)
    radius = keyed_random.uniform_at(streams, place, like.dtype)
    turn = keyed_random.uniform_at(streams, place + sizes, like.dtype)
    pieces = zip(cuts.split(normal(radius, turn)), shapes, factors, strict=True)
    drawn = [own.view(1, *shape).expand(len(q), *shape) for own, shape, q in pieces]
    given, again = _by(kinds, factors, torch.cat), _by(kinds, drawn, torch.cat)
    return {kind: living(given[kind], again[kind]) for kind in given}


def _by(
    kinds: Sequence[Shape],
    values: Sequence[Tensor],
    joined: Callable[[list[Tensor]], Tensor],
) -> dict[Shape, Tensor]:
    """Return the values of each kind, joined."""
    own: dict[Shape, list[Tensor]] = {}
    for kind, value in zip(kinds, values, strict=True):
        own.setdefault(kind, []).append(value)
    return {kind: joined(found) for kind, found in own.items()}


def _apart(
    values: dict[Shape, Tensor], kinds: Sequence[Shape], change: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return `change` of [C, ...] of each kind, as [1, ...] of each segment."""
    rows = {kind: iter(change(own).split(1)) for kind, own in values.items()}
    return [next(rows[kind]) for kind in kinds]


def _end_to_end(values: dict[Shape, Tensor], kinds: Sequence[Shape], workers: int) -> Tensor:
    """Return [C workers, ...] of each kind as one [workers, ...], in the order of segments."""
    rows = {kind: iter(own.split(workers)) for kind, own in values.items()}
    return torch.cat([next(rows[kind]).flatten(1) for kind in kinds], dim=1)
