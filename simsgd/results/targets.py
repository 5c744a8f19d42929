"""When a run first reaches a value, and the value that it has reached at a number of bytes.

Both are read off evaluations as they are: nothing between two of them, or behind the last, is
estimated.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..settings import SettingError, unknown
from ..units import in_units, is_plain_number
from .metric import NAMES, column_named, higher_is_better, values_of_column
from .run_tables import RunTables

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Target:
    """A value that a column of evaluations is to reach."""

    text: str  # as it was given
    name: str  # of a column of epochs.csv, or a metric's
    sign: str  # =, <= or >=; = is whichever is better
    value: float

    @classmethod
    def of(cls, text: str) -> "Target":
        """Return the target of a text.

        >>> Target.of("error=5"), Target.of("consensus_distance<=0.1").sign
        (Target(text='error=5', name='error', sign='=', value=5.0), '<=')

        Raises `SettingError` for any other text.
        """
        read = re.fullmatch(r"\s*(\w[\w-]*)\s*([<>]?=)\s*(\S+)\s*", str(text))
        value = float(read[3]) if read and is_plain_number(read[3]) else math.nan
        if read is None or not math.isfinite(value):
            fix = "such as error=5 or val_loss=2.0"
            raise SettingError("to", text, "must be NAME=VALUE", fix)
        return cls(text, read[1], read[2], value)

    def first(self, run: RunTables) -> "pd.Series[Any] | None":
        """Return the first evaluation of a run that reaches the target; None if none does.

        Raises `SettingError` for a column that the run does not have, and for one of which neither
        more nor less is better unless the sign says it.
        """
        rows, (values, upwards) = run.evaluations, self._values(run)
        reached = values >= self.value if upwards else values <= self.value
        found = rows.astype(object)[reached.to_numpy()]  # object: bytes stay integers
        return found.iloc[0] if len(found) else None

    def best(self, run: RunTables) -> float:
        """Return the value of a run that comes nearest to the target; nan if it has none."""
        values, upwards = self._values(run)
        return float(values.max() if upwards else values.min())

    def _values(self, run: RunTables) -> "tuple[pd.Series[float], bool]":
        """Return the column of a run, and whether it is to be as large as the target."""
        table = run.evaluations
        column = column_named(self.name, table)
        if column is None:
            raise unknown("to", self.name, [*NAMES[:-1], "loss", *table.columns])
        upwards = higher_is_better(column, [run.metric]) if self.sign == "=" else self.sign == ">="
        if upwards is None:
            rule = f"is of {self.name}, of which neither more nor less is better"
            fix = f"write '{self.name}<=VALUE' or '{self.name}>=VALUE'"
            raise SettingError("to", self.text, rule, fix)
        return values_of_column(table, column), upwards


def last_within(run: RunTables, size: int) -> "pd.Series[Any] | None":
    """Return the last evaluation before which a worker sent at most `size` bytes, or None."""
    rows = run.evaluations
    rows = rows[rows["payload_bytes"] <= size]
    return rows.iloc[-1] if len(rows) else None


def metric_at_bytes(run: RunTables, size: int) -> float:
    """Return the validation metric of that evaluation; nan if there is none."""
    row = last_within(run, size)
    return math.nan if row is None else float(run.metric.value(row))


def never_reached(runs: Sequence[RunTables], target: Target) -> list[str]:
    """Return a line for each run that never reaches a target, with the best that it does reach."""
    never = ((run, target.best(run)) for run in runs if target.first(run) is None)
    return [
        f"{run.name} never reaches {target.text}"
        + ("" if math.isnan(value) else f": its best is {value:.4g}")
        for run, value in never
    ]


def outside(runs: Sequence[RunTables], size: int) -> list[str]:
    """Return a line for each run whose evaluations all lie on one side of a number of bytes."""
    lines = []
    for run in runs:
        sent = run.evaluations["payload_bytes"]
        if sent.empty:
            continue
        if sent.iloc[0] > size:
            first = f"had sent {in_units(sent.iloc[0])} at its first evaluation"
            lines.append(f"{run.name} {first}: --eval-every N has earlier ones")
        elif sent.iloc[-1] < size:
            lines.append(f"{run.name} sent {in_units(sent.iloc[-1])} in all")
    return lines
