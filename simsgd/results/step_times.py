"""The time of a run's steps on a network: compute, compression and communication.

Everything is read from the run's folder, so that one run can be priced on every network.

Letters: W workers.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..settings import SettingError, require
from .clocks import Waiting, fronts
from .cluster import Cluster
from .communication_times import Transfers, pieces_of, require_columns, segments_of
from .compute_times import Floats
from .network import Network
from .pricing import Carried, Pricing, part_of, waited_for
from .run_tables import RunTables
from .timeline import Bucket, in_buckets
from .waiting import waiting_of

if TYPE_CHECKING:
    import pandas as pd

Waited = Callable[[Any], Any]  # seconds that steps wait for messages, of the seconds they compute

_OF_STEPS = (
    "epoch", "payload_bytes", "dense_bytes", "network_bytes", "compute_seconds",
    "compression_seconds", "relative_error",
)  # fmt: skip


def _sends_all(run: RunTables, steps: "pd.DataFrame") -> "pd.Series[bool]":
    """Return in which steps nothing was compressed."""
    algorithm = str(run.used.get("algorithm")).partition(":")[0]
    if "relative_error" in steps and algorithm != "powergossip":  # which loses nothing that it has
        return steps["relative_error"] == 0
    return steps["payload_bytes"] == steps["dense_bytes"]


def step_times(run: RunTables, network: Network, pricing: Pricing | None = None) -> "pd.DataFrame":
    """Return what each step takes: seconds of its parts, their total, and its messages.

    Measured times are medians over each epoch; where nothing is compressed, compression takes
    none. `compute` is the mean over workers, `stragglers` what a step takes longer because they
    differ, and `communication` what it waits for beside them; of that `latency` is what would be
    left if nothing were in its `messages`, those that wait for each other. `total` is by how much
    the last worker is further on than after the step before, and `dense` the total of a step that
    sends its whole gradient by an all-reduce. Raises `SettingError` for a run that lacks a table.
    """
    priced = PricedSteps(run, pricing or Pricing())
    return priced.steps[["step", "epoch"]].assign(**priced.on(network))


class PricedSteps:
    """The steps of a run, read once, to be priced on several networks.

    All arrays are of seconds and of its steps, [steps]; those of `compute` are [steps, W], or
    [steps, 1] of workers that are equal.
    """

    def __init__(self, run: RunTables, pricing: Pricing) -> None:
        pricing = with_own_cluster(pricing, run)
        self.run, self.pricing, self.num_workers = run, pricing, run.num_workers
        self.steps = run.step_columns(*_OF_STEPS)
        if self.steps.empty:
            raise SettingError("run", str(run.folder), "has no step to price yet")
        num_bytes = [name for name in _OF_STEPS if "bytes" in name]
        require_columns(run, self.steps, "steps.csv", "epoch", *num_bytes)
        if pricing.compute is None:
            devices = 1 if pricing.nodes is None else pricing.nodes.devices
            self.compute = self._measured("compute_seconds", "compute_ms")[:, None] / devices
        else:
            self.compute = pricing.drawn(pricing.compute, len(self.steps), self.num_workers)
        if pricing.compress_ms is None:
            compression = self._measured("compression_seconds", "compress_ms")
        else:
            compression = np.full(len(self.steps), pricing.compress_ms / 1000)
        sends_all = _sends_all(run, self.steps)
        self.compression: Floats = np.where(sends_all, 0.0, compression)
        self.compresses = ~sends_all.to_numpy() & (self.steps["network_bytes"] > 0).to_numpy()
        self.dense_bytes = self.steps["dense_bytes"].to_numpy("float64")
        self.transfers = Transfers(run, self.steps, pricing)
        self.sends = (self.steps["network_bytes"] > 0).to_numpy()
        differs, overlaps = self.compute.shape[1] > 1, pricing.way.kind != "none"
        self.waiting = waiting_of(run, self.steps["epoch"].tolist(), overlaps, differs)

    def on(self, network: Network) -> dict[str, Floats]:
        """Return what `step_times` has of this network, by column."""
        try:
            self.pricing.check(network, self.num_workers)
        except SettingError as wrong:
            fix = f"{wrong.fix} (of the run {self.run.name})"
            raise SettingError(wrong.name, wrong.value, wrong.rule, fix) from wrong
        mean, slowest = self.compute.mean(1), self.compute.max(1)
        waited = self._waited(network)
        inside = self.pricing.inside(network, self.dense_bytes, self.compresses)
        if self.waiting is None:
            communication = inside.seconds + waited(mean)
            alike = mean + self.compression + communication
            total = slowest + self.compression + (inside.seconds + waited(slowest))
        else:
            late = self.waiting.late
            sent = self.transfers.carried(network).seconds if late else waited(mean)
            parts = self.compression, sent, self.sends
            equal = Waiting(late=self.waiting.late)  # of equal workers none waits for another
            done = mean + inside.seconds  # in each step, whether nodes exchange anything or not
            alike = np.diff(fronts(done[:, None], *parts, equal), prepend=0.0)
            communication = alike - mean - self.compression
            done = self.compute + inside.seconds[:, None]
            total = np.diff(fronts(done, *parts, self.waiting), prepend=0.0)
        carried = self._carried(network)
        return {
            "compute": mean,
            "stragglers": total - alike,
            "compression": self.compression,
            "communication": communication,
            "latency": part_of(communication - inside.seconds, carried, network) + inside.latency,
            "messages": carried.messages,
            "total": total,
            "dense": slowest + self._dense(network)(slowest),
        }

    def buckets(self, network: Network) -> list[Bucket]:
        """Return the buckets of the steps, with arrays of seconds.

        Raises `SettingError` for a run of an earlier version, which does not know its segments.
        """
        pieces = pieces_of(self._segments, self._itemsize)
        compressed = max(1, sum(piece.elements for piece in pieces))
        found = []
        for places in in_buckets(pieces, self.pricing.way):
            own = [pieces[place] for place in places]
            part = sum(piece.elements for piece in own) / compressed
            names = {piece.name for piece in own}
            sent = self.transfers.of_bucket(network, self._segments, names)
            found.append(Bucket(own[-1].ready, self.compression * part, *sent))
        return found

    @property
    def passes(self) -> int:
        """The backward passes of a worker in a step, of which the last one alone overlaps."""
        passes = self.run.config.get("accumulate")
        return passes if isinstance(passes, int) else 1

    @cached_property
    def _segments(self) -> "pd.DataFrame":
        return segments_of(self.run)

    @property
    def _itemsize(self) -> int:
        return 8 if self.run.config.get("dtype") == "float64" else 4

    def _measured(self, column: str, setting: str) -> Floats:
        """Return the median over each epoch of measured seconds."""
        if column not in self.steps or self.steps[column].isna().any():
            rule, fix = f"has no measured {column}", f"give {setting}"
            raise SettingError("run", str(self.run.folder), rule, fix)
        medians: Floats = self.steps.groupby("epoch")[column].transform("median").to_numpy()
        return medians

    def _waited(self, network: Network) -> Waited:
        if self.pricing.way.kind == "buckets":
            buckets = self.buckets(network)
            return lambda compute: waited_for(buckets, compute, self.compression, self.passes)
        carried = self.transfers.carried(network).seconds
        return lambda c: self.pricing.waited(carried, c, self.compression, self.passes)

    def _carried(self, network: Network) -> Carried:
        """Return what the messages of each step take, whether it waits for them or not."""
        if self.pricing.way.kind != "buckets" or (self.waiting and self.waiting.late):
            return self.transfers.carried(network)
        own = self.buckets(network)
        return Carried(sum(b.communication for b in own), sum(b.messages for b in own))

    def _dense(self, network: Network) -> Waited:
        """Return what a step would wait for that sends its whole gradient by an all-reduce."""
        workers, sizes = self.num_workers, self.dense_bytes
        if self.pricing.way.kind == "buckets":
            pieces = pieces_of(self._segments, self._itemsize, "ready")
            buckets = self.pricing.dense_buckets(network, workers, pieces, sizes)
            return lambda compute: waited_for(buckets, compute, 0.0, self.passes)
        carried = self.pricing.dense(network, workers, sizes, self.transfers.segments)
        return lambda compute: self.pricing.waited(carried, compute, 0.0, self.passes)


def with_own_cluster(pricing: Pricing, run: RunTables) -> Pricing:
    """Return the pricing with the cluster that a run was trained on, if there was one.

    Raises `SettingError` for another one.
    """
    own = run.config.get("cluster")
    if own is None:
        return pricing
    same = pricing.nodes in (None, Cluster.of(str(own)))
    rule = f"must be that of the run {run.name}, which was trained on {own}"
    require(same, "cluster", pricing.cluster, rule, "leave it out")
    return replace(pricing, cluster=str(own))
