"""The time of a run's steps on a network: compute, compression and communication.

Everything is read from the run's folder, so that one run can be priced on every network.

Letters: W workers.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..settings import SettingError, require
from .network import ALL_REDUCES, Network, way_of
from .run_tables import RunTables

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
_Places = dict[tuple[str, float], NDArray[np.int64]]  # of each collective and degree

_OF_STEPS = (
    "epoch", "payload_bytes", "dense_bytes", "network_bytes", "compute_seconds",
    "compression_seconds",
)  # fmt: skip
_FUSED = ("rounds", "payload_bytes_max")  # messages of a step, and the bytes that it waits for
_UNFUSED = ("messages", "slowest_bytes")
BACKWARD = 2 / 3  # of compute: two products of matrices where the forward pass has one


@dataclass(frozen=True)
class Pricing:
    """The settings of pricing that do not depend on the network."""

    compute_ms: float | None = None  # of one worker; None: as measured in the run
    compress_ms: float | None = None  # of one worker; None: as measured in the run
    all_reduce: str = "ring"  # or tree or gloo
    fusion: bool = True  # the messages of all segments are sent together, as in DDP's buckets
    overlap: bool = False  # communication runs during the backward pass, as much as fits

    def __post_init__(self) -> None:
        for name in ("compute_ms", "compress_ms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise SettingError(name, value, "must be a finite number of at least 0")
        if self.all_reduce not in ALL_REDUCES:
            rule = f"must be one of {', '.join(ALL_REDUCES)}"
            raise SettingError("all_reduce", self.all_reduce, rule)

    def dense(self, network: Network, workers: int, num_bytes: Any, segments: Any = 1) -> Any:
        """Return the seconds of an all-reduce of the whole gradient, of `num_bytes`."""
        way = way_of("all-reduce", workers, all_reduce=self.all_reduce)
        messages = 1 if self.fusion else segments
        return way.seconds(network, messages, num_bytes)

    def waited(self, communication: Any, compute: Any) -> Any:
        """Return the part of the communication that overlap does not hide."""
        hidden = BACKWARD * compute if self.overlap else 0.0
        rest = communication - hidden
        return rest * (rest > 0)


def step_times(run: RunTables, network: Network, pricing: Pricing | None = None) -> "pd.DataFrame":
    """Return seconds of each step: compute, compression, communication, total, dense.

    Measured times are medians over each epoch; where nothing is compressed, compression takes
    none. `communication` is what the step waits for, and `dense` the total of a step that sends
    its whole gradient by an all-reduce. Raises `SettingError` for a run that lacks a table.
    """
    priced = PricedSteps(run, pricing or Pricing())
    return priced.steps[["step", "epoch"]].assign(**priced.on(network))


class PricedSteps:
    """The steps of a run, read once, to be priced on several networks.

    All arrays are of seconds and of its steps, [steps].
    """

    def __init__(self, run: RunTables, pricing: Pricing) -> None:
        self.run, self.pricing, self.num_workers = run, pricing, run.num_workers
        self.steps = run.step_columns(*_OF_STEPS)
        if self.steps.empty:
            raise SettingError("run", str(run.folder), "has no step to price yet")
        self._require(self.steps, "steps.csv", "epoch", *(n for n in _OF_STEPS if "bytes" in n))
        self.compute = self._measured("compute", pricing.compute_ms)
        compression = self._measured("compression", pricing.compress_ms, flag="compress")
        sends_all = self.steps["payload_bytes"] == self.steps["dense_bytes"]
        self.compression = np.where(sends_all, 0.0, compression)
        self.dense_bytes = self.steps["dense_bytes"].to_numpy()
        self._read_transfers()

    def on(self, network: Network) -> dict[str, Floats]:
        """Return what `step_times` has of this network, by column."""
        waited = self.pricing.waited(self._communication(network), self.compute)
        dense = self.pricing.dense(network, self.num_workers, self.dense_bytes, self.segments)
        return {
            "compute": self.compute,
            "compression": self.compression,
            "communication": waited,
            "total": self.compute + self.compression + waited,
            "dense": self.compute + self.pricing.waited(dense, self.compute),
        }

    def _require(self, table: "pd.DataFrame", file: str, *names: str) -> None:
        lacking = sorted({*names} - {*table})
        rule = f"has a {file} without the columns {', '.join(lacking)}"
        require(not lacking, "run", str(self.run.folder), rule, "train it again")

    def _measured(self, part: str, given: float | None, flag: str = "") -> Floats:
        if given is not None:
            return np.full(len(self.steps), given / 1000)
        column = f"{part}_seconds"
        if column not in self.steps or self.steps[column].isna().any():
            rule, fix = f"has no measured {column}", f"give {flag or part}_ms"
            raise SettingError("run", str(self.run.folder), rule, fix)
        return self.steps.groupby("epoch")[column].transform("median").to_numpy()

    def _read_transfers(self) -> None:
        """Read the collectives, and of which step each is."""
        messages, num_bytes = _FUSED if self.pricing.fusion else _UNFUSED
        names = {"degree", "payload_bytes", messages, num_bytes, "segments"}
        table = self.run.transfer_columns(*names)
        self._require(table, "transfers.csv", *names, "collective")
        numbers, self.of_number = np.unique(self.steps["step"], return_inverse=True)
        table = table[table["step"].isin(numbers)]
        self.places = np.searchsorted(numbers, table["step"])  # [transfers]
        segments = np.zeros(len(numbers))
        segments[self.places] = table["segments"]
        if ((segments[self.of_number] == 0) & (self.steps["network_bytes"] > 0)).any():
            rule = "has no transfers.csv, or not of every step that sent something"
            fix = "train it again: an earlier version wrote none"
            raise SettingError("run", str(self.run.folder), rule, fix)
        self.segments = np.where(segments, segments, segments.max())[self.of_number]
        self.messages = table[messages].to_numpy()
        gathers = table["collective"] == "gather"  # the sum of its buffers counts: they queue
        self.num_bytes = table[num_bytes].mask(gathers, table["payload_bytes"]).to_numpy()
        kinds = table.groupby(["collective", "degree"], observed=True).indices
        self.kinds = {(str(k[0]), float(k[1])): r for k, r in cast(_Places, kinds).items()}

    def _communication(self, network: Network) -> Floats:
        """Return the seconds of each step's collectives, one after the other."""
        seconds = np.zeros(len(self.places))
        for (collective, degree), rows in self.kinds.items():
            way = way_of(collective, self.num_workers, degree, self.pricing.all_reduce)
            seconds[rows] = way.seconds(network, self.messages[rows], self.num_bytes[rows])
        of_numbers = np.bincount(self.places, seconds, minlength=self.of_number.max() + 1)
        return of_numbers[self.of_number].astype("float64")
