"""The samples, or tokens of a text, that a run has trained on after each step."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..settings import SettingError
from .run_tables import RunTables

if TYPE_CHECKING:
    import pandas as pd

SAMPLES = ("samples", "tokens")  # what may be counted


def samples_at(run: RunTables, steps: "pd.Series[int]", unit: str) -> "NDArray[np.float64]":
    """Return how many samples or tokens the first `steps` [n] steps had, of all workers together.

    Raises `SettingError` for samples of a text and tokens of anything else, and for a run of an
    earlier version that does not have their number.
    """
    kind = "samples" if run.config.get("tokens") is None else "tokens"
    if unit != kind:
        raise SettingError("run", str(run.folder), f"counts {kind}, not {unit}", f"use x {kind}")
    table = run.step_columns("samples")
    if "samples" not in table:
        return np.asarray(steps, "float64") * _of_a_step(run)
    since = table.set_index("step")["samples"].cumsum().reindex(steps)
    if since.isna().any():
        raise SettingError("run", str(run.folder), "lacks steps that its epochs have")
    sums: NDArray[np.float64] = since.to_numpy("float64")
    return sums


def _of_a_step(run: RunTables) -> int:
    """Return the samples or tokens of each step, of a run that did not write them down."""
    config, batch = run.config, run.used.get("global_batch_size")
    varies = config.get("vary_bptt") or config.get("participation") is not None
    if not isinstance(batch, int) or varies:
        rule = "is of an earlier version, which did not write down how many samples a step had"
        raise SettingError("run", str(run.folder), rule, "train it again")
    length = config.get("bptt")
    return batch * length if isinstance(length, int) else batch
