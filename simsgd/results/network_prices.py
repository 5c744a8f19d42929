"""Prices runs on networks: milliseconds of a mean step, seconds of the whole run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

from ..given_object import plain_arguments
from ..settings import require, require_kind, size_in_bytes
from ..units import in_units
from .compute_times import Floats
from .network import Network, networks_of
from .pricing import Pricing
from .run_folders import RunPaths, find_runs
from .run_tables import RunTables
from .step_times import PricedSteps
from .targets import Target, metric_at_bytes
from .text_table import TextTable

if TYPE_CHECKING:
    import pandas as pd


_NOISE = 1e-9  # milliseconds: less than a byte takes on any link


class UntilTarget(TypedDict, total=False):
    """When a run first reaches a target; None: never."""

    to_epochs: float | None  # done by then
    to_step: int | None
    to_bytes: int | None  # that each worker has sent
    to_seconds: float | None


class PriceRow(UntilTarget):
    """What a run takes on a network."""

    run: str
    network: str
    compute_ms: float  # of a mean step, as all milliseconds here
    stragglers_ms: float  # that a step takes longer because workers' compute differs
    compression_ms: float
    communication_ms: float
    total_ms: float
    dense_ms: float  # if the step sent its whole gradient by an all-reduce
    latency_ms: float  # of communication_ms: what would be left if nothing were in the messages
    messages: float  # that wait for each other
    mostly: str  # the largest part of a step, in words
    speed_up: float  # dense_ms / total_ms
    seconds: float  # of the run
    at_bytes: NotRequired[float | None]  # validation metric at a number of bytes; None: none yet


@plain_arguments
def network(
    runs: RunPaths,
    network: str | Sequence[str] = "10gbe",
    *,
    to: str | None = None,
    at_bytes: str | int | None = None,
    compute_ms: float | str | None = None,
    compress_ms: float | None = None,
    all_reduce: str = "ring",
    fusion: bool = True,
    overlap: str | bool = "none",
    cluster: str | None = None,
) -> "pd.DataFrame":
    """Price the steps of runs on networks, from their folders alone.

    Returns a row for each run and network with the columns of `PriceRow`: milliseconds of a mean
    step, seconds of the run.

    Args:
        runs: run folders, or folders that hold some at any depth.
        network: wan, 1gbe, 10gbe, 25gbe, 100g-ib, nvlink, or
            bandwidth=10Gbit,latency=50us; or several.
        to: a target, such as error=5 or val_loss=2.0, that adds the columns `to_epochs`, `to_step`,
            `to_bytes` and `to_seconds`: of the first evaluation that reaches it. A run that never
            does has none.
        at_bytes: such as 10MB, adds `at_bytes`: the validation metric of the last evaluation before
            which each worker had sent at most so many bytes.
        compute_ms: milliseconds of one worker's forward and backward pass; None: as measured. Or
            lognormal:100,0.3, a median of 100 ms that differs from worker to worker and step to
            step; lognormal:100,0.3,seed=1 draws others.
        compress_ms: milliseconds of one worker's compression; None: as measured in the run.
        all_reduce: ring, tree or gloo.
        fusion: the messages of all segments are sent together.
        overlap: none, buckets (sent during backward as they fill, sizes as those of
            DistributedDataParallel), buckets:25MB, or perfect, as much as could be hidden at best.
        cluster: such as 4x8, if each of 4 workers is a node of 8 devices; `network` then names two,
            nvlink,10gbe: within nodes, and between them.

    Raises `SettingError` for an unknown network or column, and a run without the tables that this
    needs.
    """
    import pandas as pd

    require_kind("network", network, str, Sequence)
    require(len(network) > 0, "network", None, "must be given", "such as 10gbe")
    pricing = Pricing(compute_ms, compress_ms, all_reduce, fusion, overlap, cluster)
    target = None if to is None else Target.of(to)
    size = None if at_bytes is None else size_in_bytes("at_bytes", at_bytes)
    found = find_runs(runs, with_epochs=True, with_steps=True)
    return pd.DataFrame(prices(found, networks_of(network), pricing, target, size))


def prices(
    runs: Sequence[RunTables],
    networks: Iterable[Network],
    pricing: Pricing | None = None,
    target: Target | None = None,
    size: int | None = None,
) -> list[PriceRow]:
    """Return a row for each run and network.

    With a target the row says when it is reached; with a size, what was reached at so many bytes.
    """
    links = list(networks)
    rows = []
    for run in runs:
        steps = PricedSteps(run, pricing or Pricing())
        for link in links:
            times = steps.on(link)
            row = _price(run.name, link, times)
            if target is not None:
                row = {**row, **_until(run, steps.steps["step"], times["total"], target)}
            if size is not None:
                value = metric_at_bytes(run, size)
                row["at_bytes"] = None if math.isnan(value) else value
            rows.append(row)
    return rows


_PARTS = ("compute", "stragglers", "compression", "communication", "a step", "dense")
DISPENSABLE = (*_PARTS[:4], "dense", "the run", "mostly")  # of `price_table`, the first first


def price_table(rows: Sequence[PriceRow]) -> TextTable:
    """Return the rows in words; stragglers where there are any."""
    waits = any(row["stragglers_ms"] for row in rows)
    parts = [part for part in _PARTS if part != "stragglers" or waits]
    head = ["run", "network", *parts, "speed-up", "the run", "mostly"]
    return TextTable(head, [_cells(row, waits) for row in rows], names=2)


def target_table(
    rows: Sequence[PriceRow], runs: Sequence[RunTables], target: str, size: str
) -> TextTable:
    """Return in words what rows say of a target and of a number of bytes; "" for either: none."""
    head = ["run", "network"]
    head += ["epochs", "steps", "sent", "time"] if target else []
    head += [f"at {size}"] if size else []
    asked = [f"until {target}"] if target else []
    asked += [f"{_metric_titles(runs)} at {size}"] if size else []
    number = {run.name: run.metric.number for run in runs}
    cells = []
    for row in rows:
        cells.append([row["run"], row["network"]])
        cells[-1] += _target_cells(row) if target else []
        value = row.get("at_bytes")
        cells[-1] += ["-" if value is None else number[row["run"]](value)] if size else []
    return TextTable(head, cells, names=2, title=", and ".join(asked))


def _metric_titles(runs: Sequence[RunTables]) -> str:
    return ", ".join(dict.fromkeys(run.metric.title for run in runs))


def _target_cells(row: PriceRow) -> list[str]:
    epochs, step, sent, seconds = (
        row["to_epochs"], row["to_step"], row["to_bytes"], row["to_seconds"]
    )  # fmt: skip
    if epochs is None or step is None or sent is None or seconds is None:
        return ["never", "-", "-", "-"]
    return [f"{epochs:.4g}", f"{step:,}", in_units(sent), f"{seconds:,.1f} s"]


def price_in_words(run: RunTables, network: Network) -> str:
    """Return what a mean step takes on a network, in a line."""
    (row,) = prices([run], [network])
    listed = (
        f"compute {milliseconds(row['compute_ms'])}, "
        f"compression {milliseconds(row['compression_ms'])}, "
        f"communication {milliseconds(row['communication_ms'])}"
    )
    times = f"{row['speed_up']:.2f} times as fast as dense all-reduce"
    return f"{milliseconds(row['total_ms'])} a step ({listed}), {times}; mostly {row['mostly']}"


def milliseconds(number: float) -> str:
    """Return milliseconds as people read them; what rounding leaves of a difference is 0.

    >>> milliseconds(0.01234), milliseconds(12.34), milliseconds(12345), milliseconds(4.5e-14)
    ('0.0123 ms', '12.3 ms', '12,345 ms', '0 ms')
    """
    if abs(number) < _NOISE:
        return "0 ms"
    return f"{number:,.0f} ms" if number >= 99.95 else f"{number:#.3g} ms"


def largest_part(parts: Mapping[str, float], messages: float, network: Network) -> str:
    """Return the largest of a step's `parts` by name; of latency, how many messages wait.

    >>> largest_part({"latency": 2.25, "bytes": 0.1}, 45, Network.of("wan"))
    'latency: 45 messages of 50 ms'
    """
    first = max(parts, key=lambda name: parts[name])
    if first != "latency" or not parts[first]:
        return first
    return f"latency: {messages:.3g} messages of {1000 * network.latency:g} ms"


def _price(run: str, network: Network, times: Mapping[str, Floats]) -> PriceRow:
    mean = {name: seconds.mean() * 1000 for name, seconds in times.items()}
    messages = float(times["messages"].mean())
    parts = {name: float(mean[name]) for name in ("compute", "stragglers", "compression")}
    parts["latency"] = float(mean["latency"])
    parts["bytes"] = float(mean["communication"] - mean["latency"])
    return {
        "run": run,
        "network": network.name,
        "compute_ms": float(mean["compute"]),
        "stragglers_ms": float(mean["stragglers"]),
        "compression_ms": float(mean["compression"]),
        "communication_ms": float(mean["communication"]),
        "total_ms": float(mean["total"]),
        "dense_ms": float(mean["dense"]),
        "latency_ms": parts["latency"],
        "messages": messages,
        "mostly": largest_part(parts, messages, network),
        "speed_up": float(mean["dense"] / mean["total"]),
        "seconds": float(times["total"].sum()),
    }


def _until(run: RunTables, steps: "pd.Series[int]", seconds: Floats, target: Target) -> UntilTarget:
    """Return what a run takes until it reaches a target."""
    first = target.first(run)
    if first is None:
        return {"to_epochs": None, "to_step": None, "to_bytes": None, "to_seconds": None}
    spent = seconds[steps <= first.step]
    return {
        "to_epochs": float(first.epochs),
        "to_step": int(first.step),
        "to_bytes": int(first.payload_bytes),
        "to_seconds": float(spent.sum()),
    }


def _cells(row: PriceRow, waits: bool) -> list[str]:
    return [
        row["run"],
        row["network"],
        milliseconds(row["compute_ms"]),
        *([milliseconds(row["stragglers_ms"])] if waits else []),
        milliseconds(row["compression_ms"]),
        milliseconds(row["communication_ms"]),
        milliseconds(row["total_ms"]),
        milliseconds(row["dense_ms"]),
        f"{row['speed_up']:.2f}",
        f"{row['seconds']:,.1f} s",
        row["mostly"],
    ]
