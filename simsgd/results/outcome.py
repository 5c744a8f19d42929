"""The outcome of a run: its measures, and how tables name and write them."""

import math

from ..units import in_units
from .run_tables import RunTables

HEADINGS = {  # of each measure, from the last epoch unless noted
    "val_error1": "error@1 (%)",
    "best_val_error1": "best",  # the least of all epochs
    "val_loss": "loss",
    "payload_bytes": "sent",  # by one worker
    "peak_bytes": "in a step",  # the most; nan where all steps send about as much
    "network_bytes": "on the network",
    "ratio": "ratio",
    "seconds": "time (s)",  # of all epochs
}
MEASURES = tuple(name for name in HEADINGS if name != "peak_bytes")  # that seeds have a mean of
_DECIMALS = {"ratio": 1, "seconds": 1}  # of the others: 2


def outcome(run: RunTables) -> dict[str, float]:
    """Return the measures of a run; nan for those that it does not have."""
    if run.epochs.empty:
        return dict.fromkeys(HEADINGS, math.nan)
    values = {name: run.last.get(name, math.nan) for name in HEADINGS}
    values["best_val_error1"] = run.best.get("val_error1", math.nan)
    values["peak_bytes"] = run.peak_bytes
    values["seconds"] = float(run.epochs["seconds"].sum())
    return values


def in_words(measure: str, value: float) -> str:
    """Return a measure as tables show it, a dash for nan.

    >>> in_words("val_error1", 3.14159), in_words("payload_bytes", 2048), in_words("ratio", 32.81)
    ('3.14', '2 KiB', '32.8')
    """
    if math.isnan(value):
        return "-"
    if measure.endswith("_bytes"):
        return in_units(value)
    return f"{value:.{_DECIMALS.get(measure, 2)}f}"


def mean_in_words(measure: str, mean: float, deviation: float) -> str:
    """Return a mean with its standard deviation, if there is one.

    >>> mean_in_words("val_error1", 3.14159, 0.2), mean_in_words("val_error1", 3.14159, math.nan)
    ('3.14 +- 0.20', '3.14')
    """
    shown = in_words(measure, mean)
    return shown if math.isnan(deviation) else f"{shown} +- {in_words(measure, deviation)}"
