"""The points of the kind `pareto`: what each run paid, and what it came to."""

import math
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

from ...settings import SettingError
from ..metric import column_named, values_of_column
from ..run_tables import RunTables
from ..step_times import step_times
from ..targets import last_within
from .point_labels import Point
from .request import Request
from .run_groups import Group
from .style import marker_of

if TYPE_CHECKING:
    import pandas as pd

PARETO_AXES = ("bytes", "seconds", "budget")


def point_of(group: Group, request: Request) -> Point:
    """Return the point of a group: the mean of its runs.

    Along x it has the bytes that a worker sent, or simulated seconds, until the end, or until the
    last evaluation within a number of bytes if the request has one; or what the column was then.
    Raises `SettingError` for a run without such values.
    """
    pairs = [_pair(run, request) for run in group.runs]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    name = textwrap.fill(group.name, request.theme.wrap)
    return Point(name, sum(xs) / len(xs), sum(ys) / len(ys), xs, ys, marker_of(group.place))


def _pair(run: RunTables, request: Request) -> tuple[float, float]:
    column, rows = request.y[0], run.evaluations
    if rows.empty:
        _refuse(run, "has nothing to draw, no epoch of it has ended yet")
    spent = rows.iloc[-1] if request.size is None else _within(run, request.size)
    if request.x == "budget":
        return _value(run, spent, column), _value(run, rows.iloc[-1], column)
    if request.x == "bytes":
        if not spent["payload_bytes"] and request.appearance.logx is not False:
            fix = "leave it out, or draw bytes linearly with --no-logx"
            _refuse(run, "has sent nothing, which has no place on a logarithmic axis", fix)
        return float(spent["payload_bytes"]), _value(run, spent, column)
    times = step_times(run, request.networks[0], request.pricing)
    seconds = times.loc[times["step"] <= spent["step"], "total"].sum()
    return float(seconds), _value(run, spent, column)


def _within(run: RunTables, size: int) -> "pd.Series[Any]":
    row = last_within(run, size)
    if row is None:
        fix = "name more bytes, or train it with --eval-every N for earlier evaluations"
        _refuse(run, f"had sent more than at_bytes {size:,} before its first evaluation", fix)
    return row


def _value(run: RunTables, row: "pd.Series[Any]", column: str) -> float:
    table = row.to_frame().T
    named = column_named(column, table)
    if named is None:
        _refuse(run, f"has no column {column}")
    value = float(values_of_column(table, named).iloc[0])
    if not math.isfinite(value):
        _refuse(run, f"has no value of {column} at its end")
    return value


def _refuse(run: RunTables, rule: str, fix: str = "") -> NoReturn:
    raise SettingError("run", str(run.folder), rule, fix)
