"""What a run has come to: its measures, what tables call them, and how they are written."""

import math
from typing import Any, TypedDict, cast

from ..units import in_units
from .run_tables import RunTables


class Outcome(TypedDict):
    """The measures of a run, from its last epoch unless said otherwise."""

    val_error1: float  # errors in percent
    best_val_error1: float  # the least of all epochs
    val_loss: float
    payload_bytes: float  # bytes of one worker
    network_bytes: float
    ratio: float
    seconds: float  # of all epochs


MEASURES = tuple(Outcome.__annotations__)
HEADINGS = {
    "val_error1": "error@1 (%)",
    "best_val_error1": "best",
    "val_loss": "loss",
    "payload_bytes": "sent",
    "network_bytes": "on the network",
    "ratio": "ratio",
    "seconds": "time (s)",
}
_DECIMALS = {"ratio": 1, "seconds": 1}  # of the others: 2


def outcome(run: RunTables) -> Outcome:
    """Return the measures of a run; nan for those that it does not have."""
    epochs = run.epochs
    values: dict[str, Any] = dict.fromkeys(MEASURES, math.nan)
    if len(epochs) > 0:
        values = {name: run.last.get(name, math.nan) for name in MEASURES}
        values["best_val_error1"] = run.best.get("val_error1", math.nan)
        values["seconds"] = float(epochs["seconds"].sum())
    return cast(Outcome, values)


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
