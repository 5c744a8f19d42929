"""Choose places at random, all different, in one segment or in each of a group.

Few of many are the first k different numbers that a worker draws. Else each place draws a lot, and
the k largest lots win. All sets are equally likely. Nothing waits for the device.

Letters: L workers hosted here, S segments, n elements of one of them, P of all, k chosen of one,
K of all, D numbers drawn.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ... import keyed_random
from ...communication.cuts import Cuts
from ...keyed_random import RandomKey
from .topk_selection import largest, largest_of_each


def distinct(key: RandomKey, n: int, k: int) -> Tensor:
    """Return k different places among n for each worker, [L, k] ascending."""
    if _draws_lots(n, k):
        return largest(key.uniform(n, torch.float64), k)
    place = (key.uniform(_drawn(n, k), torch.float64) * n).long()
    return _first_different(place, Cuts((place.shape[1],)), Cuts((k,)))


def distinct_of_each(keys: Sequence[RandomKey], cuts: Cuts, kept: Cuts) -> Tensor:
    """Return the places of `distinct` in each segment, counted among all P, [L, K] ascending.

    `keys` has the random numbers of each of the S segments, and `kept` the k of each.
    """
    streams = keyed_random.stacked(keys)  # [L, S]
    found: dict[int, Tensor] = {}
    for lots, choose in ((False, _few_of_each), (True, _winners_of_each)):
        some = [s for s, k in enumerate(kept.sizes) if _draws_lots(cuts.sizes[s], k) == lots]
        if some:
            own, chosen = (Cuts(tuple(c.sizes[s] for s in some)) for c in (cuts, kept))
            index = choose(streams[:, some], own, chosen) - own.begin(chosen, streams.device)
            found |= zip(some, chosen.split(index), strict=True)
    within = torch.cat([found[s] for s in range(len(kept.sizes))], dim=1)
    return within.add_(cuts.begin(kept, within.device))


def _winners_of_each(streams: Tensor, cuts: Cuts, kept: Cuts) -> Tensor:
    """Return the places of the largest lots of each segment, [L, K]; `streams` [L, S]."""
    lots = keyed_random.uniform_at(cuts.spread(streams), cuts.place(streams.device), torch.float64)
    return largest_of_each(lots, cuts, kept)


def _few_of_each(streams: Tensor, cuts: Cuts, kept: Cuts) -> Tensor:
    """Return the first different places that each segment draws, [L, K]; `streams` [L, S]."""
    sizes = zip(cuts.sizes, kept.sizes, strict=True)
    draws = Cuts(tuple(_drawn(n, k) for n, k in sizes))
    device = streams.device
    unit = keyed_random.uniform_at(draws.spread(streams), draws.place(device), torch.float64)
    place = (unit * draws.repeated(cuts.sizes, device)).long()
    return _first_different(place + cuts.begin(draws, device), draws, kept)


def _first_different(place: Tensor, draws: Cuts, kept: Cuts) -> Tensor:
    """Return the first k different ones of each segment's places, [L, K] ascending.

    `place` [L, D] has them in the order in which they were drawn, among all P.
    """
    ordered, turn = place.sort(dim=1, stable=True)
    first = ordered.diff(dim=1, prepend=ordered.new_full((len(ordered), 1), -1)) != 0
    different = torch.zeros_like(first).scatter_(1, turn, first).cumsum(1)  # drawn until then
    edges = torch.nn.functional.pad(different, (1, 0)).index_select(1, draws.edges(place.device))
    least = torch.zeros_like(edges[:1, 1:]).add_(kept.edges(place.device).diff())  # [1, S]
    enough = (edges.diff(dim=1) >= least).all()
    torch._assert_async(enough, "too few different places drawn, as once in 10^15 times")
    rank = different.sub_(draws.spread(edges[:, :-1]))  # in its segment, from 1
    chosen = first & (rank <= draws.repeated(kept.sizes, place.device)).gather(1, turn)
    return (
        ordered.masked_fill_(~chosen, torch.iinfo(torch.int64).max).sort(1).values[:, : kept.total]
    )


def _draws_lots(n: int, k: int) -> bool:
    return 4 * k > n


def _drawn(n: int, k: int) -> int:
    """Return how many numbers hold k different places, but for once in 10^15 draws."""
    return k + k * k // n + 6 * math.isqrt(k) + 8
