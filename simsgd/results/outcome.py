"""The outcome of a run: its measures, and how tables name and write them."""

import math
from collections.abc import Iterable

from ..units import in_units
from .metric import Metric
from .noise_scale import noise_scale_of
from .run_tables import RunTables

BEST = "best"  # of all epochs
_BEST = f"{BEST}_"  # before a measure's name
_HEADINGS = {  # of each measure beside the metric, from the last epoch unless noted
    "val_loss": "loss",
    "payload_bytes": "sent",  # by one worker
    "peak_bytes": "in a step",  # the most; nan where all steps send about as much
    "received_bytes": "received",  # by one worker, of all steps; nan in older runs
    "link_bytes": "busiest link",  # one way, of all steps
    "network_bytes": "on the network",
    "ratio": "ratio",
    "noise_scale": "noise scale",  # in samples; nan where it was not measured
    "seconds": "time (s)",  # of all epochs
}
_OF_STEPS = ("peak_bytes", "received_bytes", "link_bytes", "noise_scale")  # no means in sweeps
_DECIMALS = {"ratio": 1, "seconds": 1}  # of the others: 2


def metrics_of(runs: Iterable[RunTables]) -> list[Metric]:
    """Return the metrics of runs, each once, in the order they come in."""
    return list({metric.column: metric for metric in (run.metric for run in runs)}.values())


def measures_of(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the measures of runs: those of their metrics, errors, and what all runs have.

    >>> measures_of([])[:4]
    ('val_error1', 'best_val_error1', 'val_loss', 'payload_bytes')
    """
    columns = [*(f"val_{metric.column}" for metric in metrics), "val_error1"]
    shown = [name for column in columns for name in (column, _BEST + column)]
    of_seeds = (name for name in _HEADINGS if name not in _OF_STEPS)
    return tuple(dict.fromkeys([*shown, *of_seeds]))


def heading_of(measure: str, metrics: Iterable[Metric] = ()) -> str:
    """Return what stands above a measure in tables."""
    if measure.startswith(_BEST):
        return BEST
    for metric in metrics:
        if measure == f"val_{metric.column}":
            return metric.heading
    return _HEADINGS[measure]


def outcome(run: RunTables, measures: Iterable[str]) -> dict[str, float]:
    """Return the measures of a run; nan for those that it does not have."""
    names = list(measures)
    if run.evaluations.empty:
        return dict.fromkeys(names, math.nan)
    last, best = run.last, run.best
    values = {
        name: (best if name.startswith(_BEST) else last).get(name.removeprefix(_BEST), math.nan)
        for name in names
    }
    if "peak_bytes" in values:
        values["peak_bytes"] = run.peak_bytes
    if "received_bytes" in values or "link_bytes" in values:
        own = dict(zip(("received_bytes", "link_bytes"), run.on_links, strict=True))
        values |= {name: value for name, value in own.items() if name in values}
    if "noise_scale" in values:
        values["noise_scale"] = noise_scale_of(run)
    values["seconds"] = run.seconds
    return values


def in_words(measure: str, value: float, metrics: Iterable[Metric] = ()) -> str:
    """Return a measure as tables show it, a dash for nan.

    >>> in_words("val_error1", 3.14159), in_words("payload_bytes", 2048), in_words("ratio", 32.81)
    ('3.14', '2 KiB', '32.8')
    """
    if math.isnan(value):
        return "-"
    if measure.endswith("_bytes"):
        return in_units(value)
    for metric in metrics:
        if measure.removeprefix(_BEST) == f"val_{metric.column}":
            return metric.number(value)
    if measure == "noise_scale":
        return f"{value:.4g}"
    return f"{value:.{_DECIMALS.get(measure, 2)}f}"


def mean_in_words(
    measure: str, mean: float, deviation: float, metrics: Iterable[Metric] = ()
) -> str:
    """Return a mean with its standard deviation, if there is one.

    >>> mean_in_words("val_error1", 3.14159, 0.2), mean_in_words("val_error1", 3.14159, math.nan)
    ('3.14 +- 0.20', '3.14')
    """
    shown = in_words(measure, mean, metrics)
    if math.isnan(deviation):
        return shown
    return f"{shown} +- {in_words(measure, deviation, metrics)}"
