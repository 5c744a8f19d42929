"""The kind `pareto`: a column at the end of each run against the bytes that it sent.

In place of bytes, simulated seconds; in place of the end, where a worker had sent so many bytes.

Runs that differ in their seed alone are one point, their mean, with bars from least to most. The
line is the frontier: no run below and left of it, or above and left where more is better. Points
on it are filled, the others are hollow.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...settings import SettingError
from ...units import in_round_units
from ..metric import higher_is_better
from .curves import label_of
from .legends import draw_legend, draw_legend_inside, settle
from .pareto_points import point_of
from .point_labels import Point, name_nearby
from .request import Request
from .style import GRAY, Theme
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
    points = [point_of(group, request) for group in request.groups]
    figure = NotebookFigure(*request.theme.panel, request.appearance.title)
    axes = figure.subplots()
    higher = bool(higher_is_better(request.y[0], request.metrics))
    corners = frontier(points, higher, higher and request.x == "budget")
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


def frontier(
    points: Sequence[Point], higher: bool = False, right: bool = False
) -> list[tuple[float, float]]:
    """Return the corners of the frontier: the points that no other beats in both, and the turns.

    More is better along y if `higher`, and along x if `right`.
    """
    corners: list[tuple[float, float]] = []
    sign, side = -1 if higher else 1, -1 if right else 1
    for point in sorted(points, key=lambda p: (side * p.x, sign * p.y)):
        if not corners or sign * point.y < sign * corners[-1][1]:
            if corners:
                corners.append((point.x, corners[-1][1]))
            corners.append((point.x, point.y))
    return corners


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
        axes.plot(
            point.x, point.y, marker, color=color, mfc=face, markersize=size, zorder=4,
            label=point.name,
        )  # fmt: skip
    across = np.array([x for point in points for x in point.xs])
    up = np.array([y for point in points for y in point.ys])
    axes.set(xlabel=_label_across(request), ylabel=_label_up(request))
    axes.margins(0.12, 0.12)
    up = request.appearance.scale_y(axes, up)
    across = request.appearance.scale_x(axes, across, log=request.x != "budget")
    set_ticks(axes.yaxis, up, in_bytes="bytes" in request.y[0])
    if axes.get_xscale() == "log" and across.max() < 2 * across.min():  # leave room for ticks
        across = np.sqrt(across.min() * across.max()) * np.array([0.5, 2.0])
        axes.set_xlim(*across)
    set_ticks(axes.xaxis, across, in_bytes=request.x == "bytes")


def _label_across(request: Request) -> str:
    if request.x == "seconds":
        return f"simulated seconds on {request.networks[0].name}"
    if request.x == "budget" and request.size is not None:
        return f"{label_of(request.y[0])} after {in_round_units(request.size)}"
    return "bytes sent per worker"


def _label_up(request: Request) -> str:
    label = label_of(request.y[0])
    if request.size is None:
        return label
    when = "at the end" if request.x == "budget" else f"after {in_round_units(request.size)}"
    short = len(label) + 1 + len(when) <= request.theme.wrap
    return f"{label} {when}" if short else f"{label}\n{when}"


def _size(theme: Theme) -> float:
    return 5 if theme.fixed else 7
