"""The power iteration of PowerSGD and Dion for several segments: matrices of one shape go together.

Letters: L workers hosted here, S segments, r rank, P [rows, r] and Q [cols, r] the factors of one
matrix, C matrices of one shape.
"""

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from ... import keyed_random
from ...communication.cuts import Cuts
from ...communication.messages import LowRank, Message
from ...communication.messages.joined import Joined, coded_group
from .contract import Aggregated
from .group import Group
from .kinds import Shape, apart, by_kind, exchanged
from .powersgd_factors import living, normal, orthonormal, product


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
    stacked = by_kind(kinds, matrices)  # [C L, rows, cols]
    q = _alive([own["q"] for own in states], kinds, group, of_q)

    found = {kind: product(stacked[kind], q[kind]) for kind in stacked}
    mean = yield from exchanged(found, kinds, of_p)
    p = apart(by_kind(of_p, mean), of_p, orthonormal)  # [1, rows, r] each
    every = by_kind(kinds, [own.expand(workers, -1, -1) for own in p])
    found = {kind: product(stacked[kind].mT, every[kind]) for kind in stacked}
    mean = yield from exchanged(found, kinds, of_q)
    kept = apart(by_kind(of_q, mean), of_q, scaled)
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
    given, again = by_kind(kinds, factors), by_kind(kinds, drawn)
    return {kind: living(given[kind], again[kind]) for kind in given}
