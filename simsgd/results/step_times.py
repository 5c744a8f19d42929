"""What a run's steps would take on a network: compute, compression and communication.

All comes from the run's folder, so that one run answers for every network. No torch.

Letters: W workers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..settings import require
from ..text_table import columns
from .network import ALL_REDUCES, Network, way_of
from .run_tables import RunTables

if TYPE_CHECKING:
    import pandas as pd

BACKWARD = 2 / 3  # of compute: two products of matrices where the forward pass has one


@dataclass(frozen=True)
class Pricing:
    """How a step is priced, whatever the network."""

    compute_ms: float | None = None  # of one worker; None: as measured in the run
    compress_ms: float | None = None  # of one worker; None: as measured in the run
    all_reduce: str = "ring"  # or tree
    fusion: bool = True  # the messages of all segments go together, as in DDP's buckets
    overlap: bool = False  # communication goes on during backward, as much as fits into it

    def __post_init__(self) -> None:
        for name in ("compute_ms", "compress_ms"):
            value = getattr(self, name)
            fine = value is None or 0 <= value < math.inf
            require(fine, name, value, "must be a finite number of at least 0")
        known = f"must be one of {', '.join(ALL_REDUCES)}"
        require(self.all_reduce in ALL_REDUCES, "all_reduce", self.all_reduce, known)

    def dense(self, network: Network, workers: int, num_bytes: Any, segments: Any = 1) -> Any:
        """Return the seconds of an all-reduce of the whole gradient, of `num_bytes`."""
        way = way_of("all-reduce", workers, all_reduce=self.all_reduce)
        messages = 1 if self.fusion else segments
        return network.seconds(way.hops * messages, way.share * num_bytes)

    def waited(self, communication: Any, compute: Any) -> Any:
        """Return what a step waits for its communication: what overlap does not hide."""
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
    require(len(steps) > 0, "run", str(run.folder), "has no step to price yet")
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


def prices(
    runs: Sequence[RunTables], networks: Iterable[Network], pricing: Pricing | None = None
) -> list[dict[str, Any]]:
    """Return a row for each run and network: milliseconds of a mean step, seconds of the run."""
    rows = []
    for run in runs:
        for network in networks:
            times = step_times(run, network, pricing)
            mean = times.drop(columns=["step", "epoch"]).mean() * 1000
            rows.append(
                {
                    "run": run.name,
                    "network": network.name,
                    **{
                        f"{part}_ms": float(mean[part])
                        for part in ("compute", "compression", "communication", "total", "dense")
                    },
                    "speed_up": float(mean["dense"] / mean["total"]),
                    "seconds": float(times["total"].sum()),
                }
            )
    return rows


def told(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a text for people."""
    head = ["run", "network", "compute", "compression", "communication", "a step", "dense"]
    cells = [[*head, "speed-up", "the run"]]
    for row in rows:
        parts = ("compute", "compression", "communication", "total", "dense")
        times = [milliseconds(row[f"{part}_ms"]) for part in parts]
        ends = [f"{row['speed_up']:.2f}", f"{row['seconds']:,.1f} s"]
        cells.append([row["run"], row["network"], *times, *ends])
    return columns(cells, left=(0, 1))


def in_words(run: RunTables, network: Network) -> str:
    """Return what a mean step takes on a network, in a line."""
    row = prices([run], [network])[0]
    parts = ("compute", "compression", "communication")
    listed = ", ".join(f"{part} {milliseconds(row[f'{part}_ms'])}" for part in parts)
    times = f"{row['speed_up']:.2f} times as fast as dense all-reduce"
    return f"{milliseconds(row['total_ms'])} a step ({listed}), {times}"


def milliseconds(number: float) -> str:
    """Return milliseconds as people read them.

    >>> milliseconds(0.01234), milliseconds(12.34), milliseconds(12345)
    ('0.0123 ms', '12.3 ms', '12,345 ms')
    """
    if number == 0:
        return "0 ms"
    return f"{number:,.0f} ms" if number >= 99.95 else f"{number:#.3g} ms"


def _measured(
    run: RunTables, steps: "pd.DataFrame", part: str, given: float | None, flag: str = ""
) -> "pd.Series[float]":
    """Return the seconds of each step, [steps]."""
    import pandas as pd

    if given is not None:
        return pd.Series(given / 1000, index=steps.index)
    column = f"{part}_seconds"
    there = column in steps and bool(steps[column].notna().all())
    rule, fix = f"has no measured {column}", f"give {flag or part}_ms"
    require(there, "run", str(run.folder), rule, fix)
    return steps.groupby("epoch")[column].transform("median")


def _communication(
    run: RunTables, steps: "pd.DataFrame", workers: int, network: Network, pricing: Pricing
) -> "pd.Series[float]":
    """Return the seconds of each step's collectives, one after the other, [steps]."""
    table = run.transfers
    rule = "has no transfers.csv, or not of every step"
    whole = set(steps["step"]) <= set(table["step"])
    require(whole, "run", str(run.folder), rule, "train it again: an earlier version wrote none")
    heard = table.assign(seconds=0.0)
    for (collective, degree), rows in table.groupby(["collective", "degree"]):
        way = way_of(str(collective), workers, float(str(degree)), pricing.all_reduce)
        hops = way.hops * (rows["rounds"] if pricing.fusion else rows["messages"])
        seconds = network.seconds(hops, way.share * rows[_counted(str(collective), pricing)])
        heard.loc[rows.index, "seconds"] = seconds
    summed = heard.groupby("step")["seconds"].sum().reindex(steps["step"])
    return summed.set_axis(steps.index)


def _counted(collective: str, pricing: Pricing) -> str:
    """Return the column with the bytes that a collective waits for."""
    if collective == "gather":  # buffers arrive one after the other: their sum counts
        return "payload_bytes"
    return "payload_bytes_max" if pricing.fusion else "slowest_bytes"
