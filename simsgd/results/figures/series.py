"""The numbers of a line: a column of a run's tables against epoch, step, bytes or seconds."""

import textwrap
from typing import Any

from ...settings import require
from ..run_tables import RunTables
from ..step_times import step_times
from ..tables import STEP_COLUMNS
from .legends import Curve
from .request import Request
from .run_groups import Group
from .style import look_of


def curves_of(request: Request, column: str, marked: bool) -> list[Curve]:
    """Return a curve for each group: its run's, or the mean of its runs with their least and most.

    Runs of a group are taken as far as the shortest goes.
    """
    return [
        _curve(group, request, column, look_of(place, marked))
        for place, group in enumerate(request.groups)
    ]


def _curve(group: Group, request: Request, column: str, look: dict[str, Any]) -> Curve:
    import numpy as np

    name = textwrap.fill(group.name, request.theme.wrap)
    points = [_points(run, request, column) for run in group.runs]
    if len(points) == 1:
        x, y = points[0]
        raw = y if request.smooth > 1 else None
        return Curve(name, x, running_mean(y, request.smooth), look, raw=raw)
    shortest = min(len(x) for x, _ in points)
    across = np.stack([x[:shortest] for x, _ in points])  # [runs, points]
    values = np.stack([running_mean(y, request.smooth)[:shortest] for _, y in points])
    band = values.min(0), values.max(0)
    return Curve(name, across.mean(0), values.mean(0), look, low=band[0], high=band[1])


def running_mean(values: Any, points: int) -> Any:
    """Return the mean of each value and those before it, `points` in all where there are so many.

    >>> running_mean([1.0, 3.0, 5.0, 7.0], 2).tolist()
    [1.0, 2.0, 4.0, 6.0]
    """
    import numpy as np

    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - points, 0)
    return (sums[ends] - sums[starts]) / (ends - starts) if points > 1 else values


def _points(run: RunTables, request: Request, column: str) -> tuple[Any, Any]:
    import numpy as np

    x, where = request.x, str(run.folder)
    table = run.steps if x == "step" and column in STEP_COLUMNS else run.epochs
    require(len(table) > 0, "run", where, "has nothing to draw, no epoch of it has ended yet")
    if x == "seconds":
        across, at = "step", _seconds(run, request, table)
    else:
        across = "payload_bytes" if x == "bytes" else x
        at = table[across].to_numpy("float64") if across in table else None
    for needed in (across, column):
        require(needed in table, "run", where, f"has no column {needed}")
    value = table[column].to_numpy("float64")
    drawn = np.isfinite(value) & ((at > 0) | (x != "bytes"))
    require(drawn.any(), "run", where, f"has no values of {column} to draw against {x}")
    return at[drawn], value[drawn]


def _seconds(run: RunTables, request: Request, table: Any) -> Any:
    """Return the simulated seconds since the start, at the steps of a table."""
    times = step_times(run, request.networks[0], request.pricing).set_index("step")["total"]
    since = times.cumsum().reindex(table["step"])
    rule = "lacks steps that its epochs have"
    require(bool(since.notna().all()), "run", str(run.folder), rule)
    return since.to_numpy("float64")
