"""The timeline of a step: backward and compression on the device, buckets of messages on the link.

Gradients become ready layer by layer, the last layer's first. They are sent in buckets: one is
compressed on the device as soon as it is full, before backward goes on, and is under way as soon as
the link is free. What is on the link when the device is done is waited for.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
https://arxiv.org/abs/2006.15704.

Numbers are seconds of one step, or arrays of seconds, one of each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..settings import SettingError, size_in_bytes

OVERLAPS = ("none", "buckets", "perfect")
BACKWARD = 2 / 3  # of compute: two products of matrices where the forward pass has one
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes, of DistributedDataParallel if none are given


@dataclass(frozen=True)
class Overlap:
    """How communication overlaps with backward."""

    kind: str = "none"  # of `OVERLAPS`
    first: int = FIRST_BUCKET  # bytes of gradients at which the first bucket is full
    size: int = BUCKET  # and the others

    @classmethod
    def of(cls, spec: str | bool) -> "Overlap":
        """Return the overlap of a spec: none, buckets, buckets:SIZE or perfect.

        As in DistributedDataParallel all buckets are of a size that is given. True is perfect.

        >>> Overlap.of("buckets").first, Overlap.of("buckets:4MB").first
        (1048576, 4000000)

        Raises `SettingError` for anything else.
        """
        if isinstance(spec, bool):
            return cls("perfect" if spec else "none")
        kind, colon, _ = str(spec).partition(":")
        if kind not in OVERLAPS or (colon and kind != "buckets"):
            rule = "must be none, buckets, buckets:SIZE or perfect"
            raise SettingError("overlap", spec, rule, "such as buckets:25MB")
        if not colon:
            return cls(kind)
        given = size_in_bytes("overlap", spec, "buckets:")
        return cls(kind, given, given)


@dataclass(frozen=True)
class Piece:
    """A segment, as a timeline sees it."""

    name: str
    num_bytes: int  # of its gradient
    ready: float  # part of the backward pass after which it can be sent, in (0, 1]
    elements: int = 0  # that are compressed


@dataclass(frozen=True)
class Bucket:
    """Messages that are sent together."""

    ready: float  # part of the backward pass
    compression: Any  # seconds on the device
    communication: Any  # seconds on the link
    messages: Any = 0.0  # that wait for each other


@dataclass(frozen=True)
class Span:
    """Something that takes its time in a step."""

    what: str  # forward, backward, compression or communication
    bucket: int  # counted from 0; -1: of none
    start: Any
    end: Any


def in_buckets(pieces: Sequence[Piece], overlap: Overlap) -> list[list[int]]:
    """Return the places of the pieces of each bucket, as they become ready.

    A bucket is full with the piece by which it reaches its size, as in the reducer of
    DistributedDataParallel, torch/csrc/distributed/c10d/reducer.cpp. Of equally ready pieces the
    last comes first.
    """
    order = sorted(range(len(pieces)), key=lambda place: (pieces[place].ready, -place))
    buckets: list[list[int]] = [[]]
    filled, limit = 0, overlap.first
    for place in order:
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, overlap.size
        buckets[-1].append(place)
        filled += pieces[place].num_bytes
    return [bucket for bucket in buckets if bucket]


def spans(forward: Any, backward: Any, buckets: Sequence[Bucket]) -> list[Span]:
    """Return what the device and the link do in a step, bucket by bucket."""
    found = [Span("forward", -1, 0.0 * forward, forward)]
    device = link = forward
    done = 0.0
    for place, bucket in enumerate(buckets):
        computed = device + (bucket.ready - done) * backward
        found.append(Span("backward", place, device, computed))
        device, done = computed + bucket.compression, bucket.ready
        found.append(Span("compression", place, computed, device))
        start = np.maximum(device, link)
        link = start + bucket.communication
        found.append(Span("communication", place, start, link))
    if done < 1:
        found.append(Span("backward", -1, device, device + (1 - done) * backward))
    return found


def duration(found: Sequence[Span]) -> Any:
    """Return the seconds until all of a step is done."""
    last = found[0].end
    for span in found[1:]:
        last = np.maximum(last, span.end)
    return last
