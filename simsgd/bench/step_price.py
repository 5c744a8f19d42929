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
from ..results.pricing import Pricing, waited_for
from ..results.timeline import Bucket, Piece, in_buckets
from ..simulator.ready_segments import ready_segment, waits_for_all
from ..simulator.step_bytes import Sizes

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
    times = law.drawn(_DRAWS if law.sigma else 1, counted.workers)
    mean, slowest = times.mean(1), times.max(1)  # [steps]
    passes = recipe.accumulate
    dense = pricing.dense(network, counted.workers, counted.dense_bytes, len(counted.segments))
    if pricing.way.kind == "buckets":
        buckets = _buckets(counted, compression, network, pricing, pieces, recipe)
        whole = pricing.dense_buckets(network, counted.workers, pieces, counted.dense_bytes)
        waited, alike = (waited_for(buckets, c, compression, passes) for c in (slowest, mean))
        dense_waited = waited_for(whole, slowest, 0.0, passes)
    else:
        carried = communication(counted, network, pricing)
        waited, alike = (pricing.waited(carried, c, compression, passes) for c in (slowest, mean))
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
) -> float:
    """Return the seconds of a step's collectives, one after the other; of some segments alone."""
    seconds = 0.0
    segments = [s for s in counted.segments if names is None or s.name in names]
    sent = [(segment.name, s) for segment in segments for s in segment.sent]
    for collective in dict.fromkeys(s.collective for _, s in sent):
        own = [(name, s.payload_bytes) for name, s in sent if s.collective == collective]
        rounds = max(Counter(name for name, _ in own).values())
        way = way_of(collective, counted.workers, all_reduce=pricing.all_reduce)
        messages = rounds if pricing.fusion else len(own)
        seconds += way.seconds(network, messages, sum(size for _, size in own))
    return seconds


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
        seconds = communication(counted, network, pricing, names)
        found.append(Bucket(1.0 if late else own[-1].ready, compression * share, seconds))
    return found
