"""Prices runs on networks: milliseconds of a mean step, seconds of the whole run."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypedDict

from .network import Network, networks_of
from .run_folders import RunPaths, find_runs
from .run_tables import RunTables
from .step_times import Pricing, step_times
from .text_table import TextTable

if TYPE_CHECKING:
    import pandas as pd


class PriceRow(TypedDict):
    """What a run takes on a network."""

    run: str
    network: str
    compute_ms: float  # of a mean step, as all milliseconds here
    compression_ms: float
    communication_ms: float
    total_ms: float
    dense_ms: float  # if the step sent its whole gradient by an all-reduce
    speed_up: float  # dense_ms / total_ms
    seconds: float  # of the run


def network(
    runs: RunPaths,
    network: str | Sequence[str] = "10gbe",
    *,
    compute_ms: float | None = None,
    compress_ms: float | None = None,
    all_reduce: str = "ring",
    fusion: bool = True,
    overlap: bool = False,
) -> "pd.DataFrame":
    """Price the steps of runs on networks, from their folders alone.

    Returns a row for each run and network with the columns of `PriceRow`: milliseconds of a mean
    step, seconds of the run.

    Args:
        runs: run folders, or folders that hold some at any depth.
        network: wan, 1gbe, 10gbe, 25gbe, 100g-ib, nvlink, or
            bandwidth=10Gbit,latency=50us; or several.
        compute_ms: milliseconds of one worker's forward and backward pass; None: as measured.
        compress_ms: milliseconds of one worker's compression; None: as measured in the run.
        all_reduce: ring, tree or gloo.
        fusion: the messages of all segments are sent together.
        overlap: communication runs during the backward pass.

    Raises `SettingError` for an unknown network, and a run without the tables that this needs.
    """
    import pandas as pd

    found = find_runs(runs, with_epochs=True)
    specs = [network] if isinstance(network, str) else network
    pricing = Pricing(compute_ms, compress_ms, all_reduce, fusion, overlap)
    return pd.DataFrame(prices(found, networks_of(specs), pricing))


def prices(
    runs: Sequence[RunTables], networks: Iterable[Network], pricing: Pricing | None = None
) -> list[PriceRow]:
    """Return a row for each run and network."""
    links = list(networks)
    return [_price(run, link, pricing) for run in runs for link in links]


def price_table(rows: Sequence[PriceRow]) -> TextTable:
    """Return the rows in words."""
    parts = ["compute", "compression", "communication", "a step", "dense"]
    head = ["run", "network", *parts, "speed-up", "the run"]
    return TextTable(head, [_cells(row) for row in rows], names=2)


def price_in_words(run: RunTables, network: Network) -> str:
    """Return what a mean step takes on a network, in a line."""
    row = _price(run, network, None)
    listed = (
        f"compute {milliseconds(row['compute_ms'])}, "
        f"compression {milliseconds(row['compression_ms'])}, "
        f"communication {milliseconds(row['communication_ms'])}"
    )
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


def _price(run: RunTables, network: Network, pricing: Pricing | None) -> PriceRow:
    times = step_times(run, network, pricing)
    mean = times.drop(columns=["step", "epoch"]).mean() * 1000
    return {
        "run": run.name,
        "network": network.name,
        "compute_ms": float(mean["compute"]),
        "compression_ms": float(mean["compression"]),
        "communication_ms": float(mean["communication"]),
        "total_ms": float(mean["total"]),
        "dense_ms": float(mean["dense"]),
        "speed_up": float(mean["dense"] / mean["total"]),
        "seconds": float(times["total"].sum()),
    }


def _cells(row: PriceRow) -> list[str]:
    return [
        row["run"],
        row["network"],
        milliseconds(row["compute_ms"]),
        milliseconds(row["compression_ms"]),
        milliseconds(row["communication_ms"]),
        milliseconds(row["total_ms"]),
        milliseconds(row["dense_ms"]),
        f"{row['speed_up']:.2f}",
        f"{row['seconds']:,.1f} s",
    ]
