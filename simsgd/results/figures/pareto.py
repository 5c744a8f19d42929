"""The kind `pareto`: a column at the end of each run against the bytes that it sent.

Runs that differ in their seed alone are one point, their mean, with bars from least to most. The
line is the frontier: no run below and left of it, or above and left where more is better. Points
on it are filled, the others are hollow.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...settings import SettingError
from ..metric import higher_is_better
from ..run_tables import RunTables
from .curves import label_of
from .legends import draw_legend, draw_legend_inside, settle
from .point_labels import Point, name_nearby
from .request import Request
from .run_groups import Group
from .style import GRAY, Theme, marker_of
from .ticks import set_ticks, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMED_NEARBY = 12


def draw(request: Request) -> "Figure":
    """Draw the points of the first column asked for, and their frontier."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    if len(request.y) != 1:
        raise SettingError("y", ", ".join(request.y), "must be one column", "give one -y")
    points = [_point(group, request) for group in request.groups]
    figure = NotebookFigure(*request.theme.panel, request.appearance.title)
    axes = figure.subplots()
    corners = frontier(points, bool(higher_is_better(request.y[0], request.metrics)))
    _draw(axes, points, corners, request)
    looks, names = [p.look for p in points], [p.name for p in points]
    settle(figure)
    place = request.appearance.legend
    if place == "inside":
        draw_legend_inside(axes, looks, names)
    elif place == "outside" or (place is None and not _name(axes, points, corners)):
        figure.set_layout_engine("constrained")
        draw_legend(figure, looks, names, below=request.theme.fixed)
    thin_out(axes.xaxis)
    return figure


def _name(axes: "Axes", points: Sequence[Point], corners: Sequence[tuple[float, float]]) -> bool:
    """Write names beside the points; return whether all found room."""
    return len(points) <= _MOST_NAMED_NEARBY and name_nearby(axes, points, corners)


def frontier(points: Sequence[Point], higher: bool = False) -> list[tuple[float, float]]:
    """Return the corners of the frontier: the points that no other beats in both, and the turns.

    More is better along y if `higher`.
    """
    corners: list[tuple[float, float]] = []
    sign = -1 if higher else 1
    for point in sorted(points, key=lambda p: (p.x, sign * p.y)):
        if not corners or sign * point.y < sign * corners[-1][1]:
            if corners:
                corners.append((point.x, corners[-1][1]))
            corners.append((point.x, point.y))
    return corners


def _point(group: Group, request: Request) -> Point:
    lasts = [_last(run, request.y[0]) for run in group.runs]
    xs, ys = [x for x, _ in lasts], [y for _, y in lasts]
    name = textwrap.fill(group.name, request.theme.wrap)
    return Point(name, sum(xs) / len(xs), sum(ys) / len(ys), xs, ys, marker_of(group.place))


def _last(run: RunTables, column: str) -> tuple[float, float]:
    """Return the bytes that a run sent, and a column, at its end."""
    epochs, folder = run.evaluations, str(run.folder)
    if epochs.empty:
        raise SettingError("run", folder, "has nothing to draw, no epoch of it has ended yet")
    if column not in epochs:
        raise SettingError("run", folder, f"has no column {column}")
    value = float(epochs[column].iloc[-1])
    if not math.isfinite(value):
        raise SettingError("run", folder, f"has no value of {column} at its end")
    return float(epochs["payload_bytes"].iloc[-1]), value


def _draw(
    axes: "Axes",
    points: Sequence[Point],
    corners: Sequence[tuple[float, float]],
    request: Request,
) -> None:
    axes.plot([x for x, _ in corners], [y for _, y in corners], color=GRAY, linewidth=1, zorder=2)
    for point in points:
        color = point.look.color
        if len(point.xs) > 1:
            axes.plot([min(point.xs), max(point.xs)], [point.y] * 2, color=color, linewidth=1)
            axes.plot([point.x] * 2, [min(point.ys), max(point.ys)], color=color, linewidth=1)
        face = color if (point.x, point.y) in corners else "white"
        size, marker = _size(request.theme), point.look.marker
        axes.plot(point.x, point.y, marker, color=color, mfc=face, markersize=size, zorder=4)
    across = np.array([x for point in points for x in point.xs])
    up = np.array([y for point in points for y in point.ys])
    axes.set(xlabel="bytes sent per worker", ylabel=label_of(request.y[0]))
    axes.margins(0.12, 0.12)
    up = request.appearance.scale_y(axes, up)
    across = request.appearance.scale_x(axes, across, log=True)
    set_ticks(axes.yaxis, up, in_bytes="bytes" in request.y[0])
    if axes.get_xscale() == "log" and across.max() < 2 * across.min():  # leave room for ticks
        across = np.sqrt(across.min() * across.max()) * np.array([0.5, 2.0])
        axes.set_xlim(*across)
    set_ticks(axes.xaxis, across, in_bytes=True)


def _size(theme: Theme) -> float:
    return 5 if theme.fixed else 7
