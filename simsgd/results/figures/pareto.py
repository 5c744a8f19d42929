"""The kind `pareto`: a column at the end of each run against the bytes that it sent.

Runs that differ in their seed alone are one point, their mean, with bars from least to most. The
line is the frontier: no run below and left of it.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...settings import require
from .curves import label_of
from .legends import draw_legend, settle
from .point_labels import name_nearby
from .request import Request
from .run_groups import Group
from .style import GRAY, Theme, marker_of
from .ticks import set_ticks, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMED_NEARBY = 12


@dataclass(frozen=True)
class Point:
    """A group of runs at their end: the mean, and all of them."""

    name: str
    x: float  # bytes sent per worker
    y: float
    xs: Sequence[float]
    ys: Sequence[float]
    look: dict[str, Any]


def draw(request: Request) -> "Figure":
    """Draw the points of the first column asked for, and their frontier."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    require(len(request.y) == 1, "y", ", ".join(request.y), "must be one column", "give one -y")
    points = [_point(g, request, place) for place, g in enumerate(request.groups)]
    figure = NotebookFigure(*request.theme.panel)
    axes = figure.subplots()
    _draw(axes, points, request)
    looks, names = [p.look for p in points], [p.name for p in points]
    settle(figure)
    if len(points) > _MOST_NAMED_NEARBY or not name_nearby(axes, points, frontier(points)):
        figure.set_layout_engine("constrained")
        draw_legend(figure, looks, names, below=request.theme.fixed)
    thin_out(axes.xaxis)
    return figure


def frontier(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return the corners of the frontier: each point that none beats in both, and the turns."""
    corners: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not corners or point.y < corners[-1][1]:
            if corners:
                corners.append((point.x, corners[-1][1]))
            corners.append((point.x, point.y))
    return corners


def _point(group: Group, request: Request, place: int) -> Point:
    column = request.y[0]
    lasts = []
    for run in group.runs:
        epochs = run.epochs
        told = "has nothing to draw, no epoch of it has ended yet"
        require(len(epochs) > 0, "run", str(run.folder), told)
        require(column in epochs, "run", str(run.folder), f"has no column {column}")
        lasts.append(epochs.iloc[-1])
        finite = float("-inf") < lasts[-1][column] < float("inf")
        require(finite, "run", str(run.folder), f"has no value of {column} at its end")
    xs = [float(last["payload_bytes"]) for last in lasts]
    ys = [float(last[column]) for last in lasts]
    name = textwrap.fill(group.name, request.theme.wrap)
    return Point(name, sum(xs) / len(xs), sum(ys) / len(ys), xs, ys, marker_of(place))


def _draw(axes: "Axes", points: Sequence[Point], request: Request) -> None:
    import numpy as np

    corners = frontier(points)
    axes.plot([x for x, _ in corners], [y for _, y in corners], color=GRAY, linewidth=1, zorder=2)
    for point in points:
        color = point.look["color"]
        if len(point.xs) > 1:
            axes.plot([min(point.xs), max(point.xs)], [point.y] * 2, color=color, linewidth=1)
            axes.plot([point.x] * 2, [min(point.ys), max(point.ys)], color=color, linewidth=1)
        axes.plot(point.x, point.y, **point.look, markersize=_size(request.theme), zorder=4)
    across = np.array([x for point in points for x in point.xs])
    up = np.array([y for point in points for y in point.ys])
    axes.set(xscale="log", xlabel="bytes sent per worker", ylabel=label_of(request.y[0]))
    if up.min() > 0 and up.max() > 20 * up.min():
        axes.set_yscale("log")
    axes.margins(0.12, 0.12)
    set_ticks(axes.yaxis, up, in_bytes="bytes" in request.y[0])
    if across.max() < 2 * across.min():  # near each other: leave room for ticks
        across = np.sqrt(across.min() * across.max()) * np.array([0.5, 2.0])
        axes.set_xlim(*across)
    set_ticks(axes.xaxis, across, in_bytes=True)


def _size(theme: Theme) -> float:
    return 5 if theme.fixed else 7
