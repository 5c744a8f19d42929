"""The numbers of a line: a column of a run's tables against epoch, step, bytes or seconds."""

import textwrap
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from ...settings import SettingError
from ..run_tables import RunTables
from ..samples import SAMPLES, samples_at
from ..step_times import step_times
from ..tables import ALL_STEP_COLUMNS
from .legends import Curve, Floats
from .request import Request
from .run_groups import Group
from .style import Look, look_of

if TYPE_CHECKING:
    import pandas as pd


OF_STEPS = ("step", *SAMPLES)  # axes against which columns of steps.csv may be drawn
_COLUMNS = {  # of each axis, where they have another name
    "bytes": "payload_bytes",
    "epoch": "epochs",
    "seconds": "step",
    "samples": "step",
    "tokens": "step",
}


def curves_of(request: Request, column: str, marked: bool) -> list[Curve]:
    """Return a curve for each group: its run's, or the mean of its runs with their least and most.

    Runs of a group are taken as far as the shortest goes.
    """
    looks = [look_of(group.place, marked) for group in request.groups]
    return [
        _curve(group, request, column, look).thinned()
        for group, look in zip(request.groups, looks, strict=True)
    ]


def _curve(group: Group, request: Request, column: str, look: Look) -> Curve:
    name = textwrap.fill(group.name, request.theme.wrap)
    points = [_smoothed(run, request, column) for run in group.runs]
    if len(points) == 1:
        x, y, raw = points[0]
        return Curve(name, x, y, look, raw=raw)
    shortest = min(len(x) for x, _, _ in points)
    across = np.stack([x[:shortest] for x, _, _ in points])  # [runs, points]
    values = np.stack([y[:shortest] for _, y, _ in points])
    low, high = _band(values, request.appearance.band)
    return Curve(name, across.mean(0), values.mean(0), look, low=low, high=high)


def _smoothed(
    run: RunTables, request: Request, column: str
) -> tuple[Floats, Floats, Floats | None]:
    """Return x, the running mean of y, and y as it was if that is another.

    A noise scale is the ratio of the running means of its two parts, which have no bias.
    """
    if request.smooth == 1:
        return *_points(run, request, column), None
    if column != "noise_scale":
        x, y = _points(run, request, column)
        return x, running_mean(y, request.smooth), y
    x, square = _points(run, request, "gradient_square")
    _, variance = _points(run, request, "gradient_variance")
    square, variance = (running_mean(each, request.smooth) for each in (square, variance))
    drawn = square > 0
    if not drawn.any():
        _refuse(run, f"has no mean of {request.smooth} steps with a gradient above the noise")
    return x[drawn], variance[drawn] / square[drawn], None


def _band(values: Floats, kind: str) -> tuple[Floats, Floats] | tuple[None, None]:
    """Return the band around the mean of runs: values [runs, points]."""
    if kind == "none":
        return None, None
    if kind == "range":
        return values.min(0), values.max(0)
    deviation = values.std(0, ddof=1)  # of the sample
    if kind == "sem":
        deviation = deviation / np.sqrt(len(values))
    return values.mean(0) - deviation, values.mean(0) + deviation


def running_mean(values: ArrayLike, points: int) -> Floats:
    """Return the mean of each value and those before it, `points` in all where there are so many.

    >>> running_mean([1.0, 3.0, 5.0, 7.0], 2).tolist()
    [1.0, 2.0, 4.0, 6.0]
    """
    given = np.asarray(values, "float64")
    if points == 1:
        return given
    sums = np.cumsum(np.concatenate([[0.0], given]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - points, 0)
    means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _points(run: RunTables, request: Request, column: str) -> tuple[Floats, Floats]:
    x = request.x
    of_steps = x in OF_STEPS and column in ALL_STEP_COLUMNS
    table = run.step_columns(column) if of_steps else run.evaluations
    if table.empty:
        _refuse(run, "has nothing to draw, no epoch of it has ended yet")
    across = _COLUMNS.get(x, x)
    for needed in (across, column):
        if needed not in table:
            _refuse(run, f"has no column {needed}")
    at = table[across].to_numpy("float64")
    if x == "seconds":
        at = _seconds(run, request, table)
    if x in SAMPLES:
        at = samples_at(run, table["step"], x)
    value = table[column].to_numpy("float64")
    drawn = np.isfinite(value) & np.isfinite(at) & ((at > 0) | (x != "bytes"))
    if not drawn.any():
        steps = x == "epoch" and np.isfinite(value).any()
        fix = "give x step" if steps else ""
        _refuse(run, f"has no values of {column} to draw against {x}", fix)
    return at[drawn], value[drawn]


def _seconds(run: RunTables, request: Request, table: "pd.DataFrame") -> Floats:
    """Return the simulated seconds since the start, at the steps of a table."""
    times = step_times(run, request.networks[0], request.pricing).set_index("step")["total"]
    since = times.cumsum().reindex(table["step"])
    if since.isna().any():
        _refuse(run, "lacks steps that its epochs have")
    return since.to_numpy("float64")


def _refuse(run: RunTables, rule: str, fix: str = "") -> NoReturn:
    raise SettingError("run", str(run.folder), rule, fix)
