"""The time of a run's steps on a network: compute, compression and communication.

Everything is read from the run's folder, so that one run can be priced on every network.

Letters: W workers.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..settings import SettingError
from .network import ALL_REDUCES, Network, way_of
from .run_tables import RunTables

if TYPE_CHECKING:
    import pandas as pd

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
    pricing = pricing or Pricing()
    steps = run.steps
    if steps.empty:
        raise SettingError("run", str(run.folder), "has no step to price yet")
    workers = run.num_workers
    compute = _measured(run, steps, "compute", pricing.compute_ms)
    compression = _measured(run, steps, "compression", pricing.compress_ms, flag="compress")
    compression = compression.where(steps["payload_bytes"] != steps["dense_bytes"], 0.0)
    carried = _communication(run, steps, workers, network, pricing)
    segments = run.transfers.groupby("step")["segments"].first().reindex(steps["step"]).to_numpy()
    dense = pricing.dense(network, workers, steps["dense_bytes"], segments)
    table = steps[["step", "epoch"]].copy()
    table["compute"], table["compression"] = compute, compression
    table["communication"] = pricing.waited(carried, compute)
    table["total"] = table["compute"] + table["compression"] + table["communication"]
    table["dense"] = compute + pricing.waited(dense, compute)
    return table


def _measured(
    run: RunTables, steps: "pd.DataFrame", part: str, given: float | None, flag: str = ""
) -> "pd.Series[float]":
    """Return the seconds of each step, [steps]."""
    import pandas as pd

    if given is not None:
        return pd.Series(given / 1000, index=steps.index)
    column = f"{part}_seconds"
    if column not in steps or steps[column].isna().any():
        rule, fix = f"has no measured {column}", f"give {flag or part}_ms"
        raise SettingError("run", str(run.folder), rule, fix)
    return steps.groupby("epoch")[column].transform("median")


def _communication(
    run: RunTables, steps: "pd.DataFrame", workers: int, network: Network, pricing: Pricing
) -> "pd.Series[float]":
    """Return the seconds of each step's collectives, one after the other, [steps]."""
    table, sending = run.transfers, steps.loc[steps["network_bytes"] > 0, "step"]
    if not set(sending) <= set(table["step"]):
        rule = "has no transfers.csv, or not of every step that sent something"
        fix = "train it again: an earlier version wrote none"
        raise SettingError("run", str(run.folder), rule, fix)
    priced = table.assign(seconds=0.0)
    for (collective, degree), rows in table.groupby(["collective", "degree"]):
        way = way_of(str(collective), workers, float(str(degree)), pricing.all_reduce)
        messages = rows["rounds"] if pricing.fusion else rows["messages"]
        seconds = way.seconds(network, messages, rows[_counted(str(collective), pricing)])
        priced.loc[rows.index, "seconds"] = seconds
    summed = priced.groupby("step")["seconds"].sum().reindex(steps["step"], fill_value=0.0)
    return summed.set_axis(steps.index)


def _counted(collective: str, pricing: Pricing) -> str:
    """Return the column with the bytes that a collective waits for."""
    if collective == "gather":  # buffers arrive one after the other: their sum counts
        return "payload_bytes"
    return "payload_bytes_max" if pricing.fusion else "slowest_bytes"
