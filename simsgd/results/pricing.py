"""The settings of pricing that do not depend on the network.

Numbers are seconds of one step, or arrays of seconds, one of each step.

Letters: W workers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..settings import SettingError, require_kind
from .compute_times import ComputeTimes
from .network import ALL_REDUCES, Network, way_of
from .timeline import BACKWARD, Bucket, Overlap, Piece, duration, in_buckets, spans


@dataclass(frozen=True)
class Pricing:
    """How steps are priced."""

    compute_ms: float | str | None = None  # of one worker, or its law; None: as measured
    compress_ms: float | None = None  # of one worker; None: as measured in the run
    all_reduce: str = "ring"  # or tree or gloo
    fusion: bool = True  # the messages of all segments are sent together
    overlap: str | bool = "none"  # with backward: none, buckets, buckets:SIZE or perfect, as True

    def __post_init__(self) -> None:
        self.compute  # noqa: B018 - reads the setting, and refuses a wrong one
        require_kind("compress_ms", self.compress_ms, float, type(None))
        if self.compress_ms is not None and not 0 <= self.compress_ms < math.inf:
            rule = "must be a finite number of at least 0"
            raise SettingError("compress_ms", self.compress_ms, rule)
        if self.all_reduce not in ALL_REDUCES:
            rule = f"must be one of {', '.join(ALL_REDUCES)}"
            raise SettingError("all_reduce", self.all_reduce, rule)
        if isinstance(self.overlap, bool):
            object.__setattr__(self, "overlap", self.way.kind)
        if self.way.kind == "buckets" and not self.fusion:
            rule, fix = "says what is sent together", "leave out no-fusion or this"
            raise SettingError("overlap", self.overlap, rule, fix)

    @property
    def way(self) -> Overlap:
        """How communication overlaps with backward."""
        return Overlap.of(self.overlap)

    @property
    def compute(self) -> ComputeTimes | None:
        """The times of compute; None: as measured in the run."""
        return None if self.compute_ms is None else ComputeTimes.of(self.compute_ms)

    def dense(self, network: Network, workers: int, num_bytes: Any, segments: Any = 1) -> Any:
        """Return the seconds of an all-reduce of the whole gradient, of `num_bytes`."""
        way = way_of("all-reduce", workers, all_reduce=self.all_reduce)
        messages = 1 if self.fusion else segments
        return way.seconds(network, messages, num_bytes)

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
