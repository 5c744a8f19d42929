"""Prices a step of a compressor on a network, from the sizes of its messages.

Letters: W workers.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..communication.segments import Layout
from ..methods.algorithms import AllReduce
from ..recipe import Recipe
from ..results.compute_times import ComputeTimes
from ..results.network import Network, way_of
from ..results.pricing import Carried, Pricing, carriers_of, fused_messages, part_of, waited_for
from ..results.timeline import Bucket, Piece, in_buckets
from ..simulator.ready_segments import ready_segment, waits_for_all
from ..simulator.step_bytes import Sizes

_PAIRS = 1  # neighbors at a time, where an all-reduce goes from worker to worker
_DRAWS = 1000  # steps whose mean is taken where compute differs


@dataclass(frozen=True)
class StepPrice:
    """The seconds of a step, means where compute differs from step to step."""

    compute: float  # of one worker
    stragglers: float  # that the step takes longer because workers differ
    compression: float
    communication: float  # that it waits for
    total: float
    dense: float  # of a step that sends its whole gradient by an all-reduce
    latency: float  # of communication
    messages: float  # that wait for each other


def step_price(
    counted: Sizes,
    compression: float,
    network: Network,
    pricing: Pricing,
    pieces: Sequence[Piece],
    recipe: Recipe,
) -> StepPrice:
    """Return what a step takes whose messages are `counted` and whose worker compresses so long.

    `pieces` are the segments, for overlap in buckets.
    """
    law = pricing.compute or ComputeTimes(0.0)
    pricing.check(network, counted.workers)
    times = pricing.drawn(law, _DRAWS if law.sigma else 1, counted.workers)
    mean, slowest = times.mean(1), times.max(1)  # [steps]
    passes = recipe.accumulate
    dense = pricing.dense(network, counted.workers, counted.dense_bytes, len(counted.segments))
    compressed = counted.payload_bytes != counted.dense_bytes
    inside = pricing.inside(network, counted.dense_bytes, compressed)
    if pricing.way.kind == "buckets":
        buckets = _buckets(counted, compression, network, pricing, pieces, recipe)
        whole = pricing.dense_buckets(network, counted.workers, pieces, counted.dense_bytes)
        carried = Carried(sum(b.communication for b in buckets), sum(b.messages for b in buckets))
        waited, alike = (waited_for(buckets, c, compression, passes) for c in (slowest, mean))
        dense_waited = waited_for(whole, slowest, 0.0, passes)
    else:
        carried = communication(counted, network, pricing)
        sent = carried.seconds + inside.seconds
        waited, alike = (pricing.waited(sent, c, compression, passes) for c in (slowest, mean))
        dense_waited = pricing.waited(dense, slowest, 0.0, passes)
    total = float(np.mean(slowest + waited)) + compression
    own, exchanged = float(np.mean(mean)), float(np.mean(alike))
    return StepPrice(
        compute=own,
        stragglers=float(np.mean((slowest - mean) + (waited - alike))),
        compression=compression,
        communication=exchanged,
        total=total,
        dense=float(np.mean(slowest + dense_waited)),
        latency=float(part_of(exchanged - inside.seconds, carried, network) + inside.latency),
        messages=float(carried.messages),
    )


def pieces_of(
    shapes: Mapping[str, torch.Size], dtype: str, recipe: Recipe, order: Mapping[str, float]
) -> list[Piece]:
    """Return the segments of a model whose parameters' gradients come in this `order`."""
    itemsize = getattr(torch, dtype).itemsize
    layout = Layout.of(shapes, recipe.granularity, recipe.rule, itemsize)
    return [
        Piece(s.name, s.n * itemsize, ready_segment(s, order), 0 if s.dense else s.n)
        for s in layout.segments
    ]


def communication(
    counted: Sizes, network: Network, pricing: Pricing, names: Collection[str] | None = None
) -> Carried:
    """Return what a step's collectives take, one after the other; those of some segments alone."""
    segments = [s for s in counted.segments if names is None or s.name in names]
    sent = [(segment.name, s) for segment in segments for s in segment.sent]
    found: dict[str, Carried] = {}
    bytes_of = Counter[str]()
    for collective in dict.fromkeys(s.collective for _, s in sent):
        own = [(name, s) for name, s in sent if s.collective == collective]
        way = way_of(collective, counted.workers, _PAIRS, pricing.all_reduce)
        fused = fused_messages((name, s.operation) for name, s in own)
        messages = fused if pricing.fusion else len(own)
        bytes_of[collective] = sum(s.payload_bytes for _, s in own)
        seconds = way.seconds(network, messages, bytes_of[collective])
        found[collective] = Carried(seconds, way.hops * messages)
    carriers = carriers_of((name, s.collective) for name, s in sent) if pricing.fusion else ()
    if carriers and "all-reduce" in found:
        found["all-reduce"] = pricing.riding_along(
            network, counted.workers, carriers, found["all-reduce"], bytes_of["all-reduce"]
        )
    return Carried(sum(f.seconds for f in found.values()), sum(f.messages for f in found.values()))


def _buckets(
    counted: Sizes,
    compression: float,
    network: Network,
    pricing: Pricing,
    pieces: Sequence[Piece],
    recipe: Recipe,
) -> list[Bucket]:
    late = waits_for_all(recipe, AllReduce())
    compressed = max(1, sum(piece.elements for piece in pieces))
    found = []
    for places in in_buckets(pieces, pricing.way):
        own = [pieces[place] for place in places]
        share = sum(piece.elements for piece in own) / compressed
        names = {piece.name for piece in own}
        carried = communication(counted, network, pricing, names)
        ready = 1.0 if late else own[-1].ready
        found.append(Bucket(ready, compression * share, *carried))
    return found
