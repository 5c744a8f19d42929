"""The settings of pricing that do not depend on the network.

Numbers are seconds of one step, or arrays of seconds, one of each step.

Letters: W workers.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..settings import SettingError, require_kind
from .cluster import Cluster, check_one_level
from .compute_times import ComputeTimes, Floats, check_milliseconds
from .network import ALL_REDUCES, Network, reduce_and_broadcast, way_of
from .timeline import BACKWARD, Bucket, Overlap, Piece, duration, in_buckets, spans

CARRIERS = (("all-gather",), ("gather", "broadcast"))  # that whole segments may ride along with


class Carried(NamedTuple):
    """What messages take that go one after the other."""

    seconds: Any
    messages: Any  # that wait for each other

    def latency(self, network: Network) -> Any:
        """Return the seconds that would be left if nothing were in the messages."""
        return np.minimum(self.messages * network.latency, self.seconds)


class Inside(NamedTuple):
    """What a step takes within the nodes of a cluster."""

    seconds: Any
    latency: Any  # seconds, of these


def check_networks(networks: Iterable[Network], cluster: str | None) -> None:
    """Raise `SettingError` for a network that does not go with a cluster, or None, of runs."""
    pricing = Pricing(cluster=cluster)
    for network in networks:
        pricing.check(network, 1 if pricing.nodes is None else pricing.nodes.nodes)


def part_of(communication: Any, carried: Carried, network: Network) -> Any:
    """Return what part of the seconds that are waited for is latency, in seconds."""
    whole = np.where(carried.seconds, carried.seconds, 1.0)
    return communication * carried.latency(network) / whole


@dataclass(frozen=True)
class Pricing:
    """How steps are priced."""

    compute_ms: float | str | None = None  # of one worker, or its law; None: as measured
    compress_ms: float | None = None  # of one worker; None: as measured in the run
    all_reduce: str = "ring"  # or tree or gloo
    fusion: bool = True  # the messages of all segments are sent together
    overlap: str | bool = "none"  # with backward: none, buckets, buckets:SIZE or perfect, as True
    cluster: str | None = None  # nodes and devices of each, such as 4x8; None: workers are devices

    def __post_init__(self) -> None:
        self.compute  # noqa: B018 - reads the setting, and refuses a wrong one
        require_kind("compress_ms", self.compress_ms, float, type(None))
        if self.compress_ms is not None:
            check_milliseconds("compress_ms", self.compress_ms)
        require_kind("fusion", self.fusion, bool)
        if self.all_reduce not in ALL_REDUCES:
            rule = f"must be one of {', '.join(ALL_REDUCES)}"
            raise SettingError("all_reduce", self.all_reduce, rule)
        if isinstance(self.overlap, bool):
            object.__setattr__(self, "overlap", self.way.kind)
        if self.way.kind == "buckets" and not self.fusion:
            rule, fix = "says what is sent together", "leave it out, or let messages be fused"
            raise SettingError("overlap", self.overlap, rule, fix)

        if self.nodes is not None and self.way.kind != "none":
            rule, fix = "is not priced on a cluster", "leave it out"
            raise SettingError("overlap", self.overlap, rule, fix)

    @property
    def nodes(self) -> Cluster | None:
        """The cluster whose nodes are the workers; None: each worker is one device."""
        return None if self.cluster is None else Cluster.of(self.cluster)

    def check(self, network: Network, workers: int) -> None:
        """Raise `SettingError` for a network or workers that do not go with the cluster."""
        if self.nodes is None:
            check_one_level(network)
        else:
            self.nodes.check(workers, network)

    def drawn(self, law: ComputeTimes, steps: int, workers: int) -> Floats:
        """Return the seconds of compute of each step and worker, [steps, W], or [steps, 1]."""
        return law.drawn(steps, workers) if self.nodes is None else self.nodes.drawn(law, steps)

    def inside(self, network: Network, num_bytes: Any, compressed: Any) -> Inside:
        """Return what a step takes within each node, whose gradient has `num_bytes`.

        Where something is `compressed` one device does it: it gets the sum, and what comes of the
        exchange goes to all. Else devices all-reduce, before nodes do with a share each.
        """
        if self.nodes is None or network.within is None:
            return Inside(np.zeros(np.shape(num_bytes)), np.zeros(np.shape(num_bytes)))
        ways = reduce_and_broadcast(self.nodes.devices), way_of("all-reduce", self.nodes.devices)
        one, all_ = (way.seconds(network.within, 1, num_bytes) for way in ways)
        hops = np.where(compressed, ways[0].hops, ways[1].hops)
        return Inside(np.where(compressed, one, all_), hops * network.within.latency)

    @property
    def way(self) -> Overlap:
        """How communication overlaps with backward."""
        return Overlap.of(self.overlap)

    @property
    def compute(self) -> ComputeTimes | None:
        """The times of compute; None: as measured in the run."""
        return None if self.compute_ms is None else ComputeTimes.of(self.compute_ms)

    def riding_along(
        self,
        network: Network,
        workers: int,
        carriers: Sequence[str],
        all_reduce: Carried,
        size: Any,
    ) -> Carried:
        """Return what an all-reduce of `size` bytes takes, or what carriers take longer with them.

        That is what takes less. In an all-gather, or by a server and back, whole segments wait for
        no message of their own.
        """
        longer = seconds_along(network, workers, carriers, size)
        messages = np.where(longer < all_reduce.seconds, 0.0, all_reduce.messages)
        return Carried(np.minimum(longer, all_reduce.seconds), messages)

    def rides(self, network: Network, workers: int, carriers: Sequence[str], size: int) -> bool:
        """Return whether `size` bytes take less time with carriers than by an all-reduce."""
        way = way_of("all-reduce", workers, all_reduce=self.all_reduce)
        longer = seconds_along(network, workers, carriers, size)
        return bool(longer < way.seconds(network, 1, size))

    def dense(self, network: Network, workers: int, num_bytes: Any, segments: Any = 1) -> Any:
        """Return the seconds of an all-reduce of the whole gradient, of `num_bytes`."""
        way = way_of("all-reduce", workers, all_reduce=self.all_reduce)
        messages = 1 if self.fusion else segments
        inside = self.inside(network, num_bytes, False).seconds
        return inside + way.seconds(network, messages, num_bytes)

    def dense_buckets(
        self, network: Network, workers: int, pieces: Sequence[Piece], num_bytes: Any
    ) -> list[Bucket]:
        """Return the buckets in which a whole gradient of `num_bytes` is all-reduced."""
        whole = sum(piece.num_bytes for piece in pieces)
        buckets = [[pieces[place] for place in own] for own in in_buckets(pieces, self.way)]
        shares = [sum(piece.num_bytes for piece in own) / whole for own in buckets]
        return [
            Bucket(own[-1].ready, 0.0, self.dense(network, workers, num_bytes * share))
            for own, share in zip(buckets, shares, strict=True)
        ]

    def waited(
        self, communication: Any, compute: Any, compression: Any = 0.0, passes: int = 1
    ) -> Any:
        """Return the whole of the communication, or with overlap what is not hidden at best.

        At best the link is busy from where the last of so many backward passes begins.
        """
        if self.way.kind == "none":
            return communication
        rest = communication - BACKWARD * compute / passes - compression
        return rest * (rest > 0)


def waited_for(
    buckets: Sequence[Bucket], compute: Any, compression: Any = 0.0, passes: int = 1
) -> Any:
    """Return what a step waits for whose buckets overlap with its last backward pass."""
    backward = BACKWARD * compute / passes
    return duration(spans(compute - backward, backward, buckets)) - compute - compression


def seconds_along(network: Network, workers: int, carriers: Sequence[str], size: Any) -> Any:
    """Return how much longer the messages of carriers take with `size` more bytes in them."""
    return sum(way_of(name, workers).seconds(network, 0, size) for name in carriers)


def fused_messages(sent: Iterable[tuple[str, str]]) -> int:
    """Return how many messages of a collective remain if those of all segments go together.

    `sent` are the segment and the operation of each: sums and maxima do not go together, nor do
    dtypes or ways between neighbors. What a segment sends twice needs an answer in between.

    >>> fused_messages([("p", "sum"), ("p", "sum"), ("q", "sum"), ("q", "max")])
    3
    """
    counts = Counter(sent)
    operations = {operation for _, operation in counts}
    return sum(max(n for (_, o), n in counts.items() if o == own) for own in operations)


def carriers_of(messages: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the collectives that whole segments may ride along with, for each message's names.

    These are a segment and a collective. What is all-reduced may ride along if it is all that its
    segments send, so that nothing waits for it, and if no other segment needs an all-reduce.

    >>> carriers_of([("weight", "all-gather"), ("bias", "all-reduce")])
    ('all-gather',)
    >>> carriers_of([("weight", "all-reduce"), ("weight", "all-gather"), ("bias", "all-reduce")])
    ()
    """
    listed = list(messages)
    number = Counter(segment for segment, _ in listed)
    others = {(s, c) for s, c in listed if c != "all-reduce" or number[s] > 1}
    collectives = {collective for _, collective in others}
    return next((own for own in CARRIERS if {*own} == collectives), ())
