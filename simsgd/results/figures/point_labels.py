"""Labels beside points, which overlap neither each other nor anything that is drawn.

A label too far from its point to belong to it at a glance is led to it by a dotted line, which
crosses nothing either. Several orders of labeling are tried, and the one with the least lines and
distance is taken.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

_ANGLES = (0, 180, 45, 315, 135, 225, 90, 270, 22, 158, 338, 202, 67, 293, 113, 247)  # best first
_DISTANCES = (9, 14, 20, 28, 38, 50)  # points
_LED_FROM = 20  # points: farther labels have a line
_LINE = 100.0  # points of distance that a line is as bad as
_NO_PLACE = 1e6


@dataclass(frozen=True)
class Point:
    """A group of runs at their end: the mean, and all of them."""

    name: str
    x: float  # bytes sent per worker
    y: float
    xs: Sequence[float]
    ys: Sequence[float]
    look: Look


@dataclass(frozen=True)
class _Place:
    """A place for a label: its offset in points, its box and the ends of its line in pixels."""

    across: float
    up: float
    box: "Bbox"
    line: tuple[tuple[float, float], tuple[float, float]] | None
    cost: float

    @property
    def alignment(self) -> tuple[str, str]:
        """How the label stands to its offset: horizontally and vertically."""
        level, upright = abs(self.up) < 1, abs(self.across) < 1
        ha = "center" if upright else "left" if self.across > 0 else "right"
        return ha, "center" if level else "bottom" if self.up > 0 else "top"


def name_nearby(axes: "Axes", points: Sequence[Point], line: Sequence[tuple[float, float]]) -> bool:
    """Write the name of each point beside it, in its color; return whether all found room.

    `line` is the corners of a line to keep clear of. Where one name finds no room, none is written.
    """
    drawn = _drawn(axes, points, line)
    sizes = [_size(axes, point) for point in points]
    tried = (_places(axes, points, sizes, drawn, order) for order in _orders(axes, points))
    cost, places = min(tried, key=lambda found: found[0])
    if cost >= _NO_PLACE:
        return False
    for point, place in zip(points, places, strict=True):
        _write(axes, point, place)
    return True


def _orders(axes: "Axes", points: Sequence[Point]) -> Iterator[list[int]]:
    """Yield orders of labeling: along both axes, the crowded first, and as they are."""
    at = axes.transData.transform([(point.x, point.y) for point in points])
    apart = np.hypot(*(at[:, None] - at).transpose(2, 0, 1))
    crowd = np.sort(apart, axis=1)[:, 1:3].sum(1)
    yield list(range(len(points)))
    for key in (crowd, at[:, 0], -at[:, 0], at[:, 1], -at[:, 1]):
        yield np.argsort(key, kind="stable").tolist()


def _places(
    axes: "Axes",
    points: Sequence[Point],
    sizes: Sequence[tuple[float, float]],
    drawn: "Sequence[Sequence[Bbox]]",
    order: Sequence[int],
) -> tuple[float, "list[_Place]"]:
    """Return the places of all labels, found in an order, and their cost."""
    found: dict[int, _Place] = {}
    everything = list(itertools.chain(*drawn))
    for number in order:
        *of_points, _ = (boxes for own, boxes in enumerate(drawn) if own != number)
        labels = [place.box for place in found.values()]
        in_the_way = [*itertools.chain(*of_points), *labels]  # of a line, which may cross a line
        lines = [place.line for place in found.values() if place.line is not None]
        free = (
            place
            for place in _candidates(axes, points[number], sizes[number])
            if not any(place.box.overlaps(box) for box in (*everything, *labels))
            and not any(_crosses(line, place.box) for line in lines)
            and (place.line is None or not any(_crosses(place.line, b) for b in in_the_way))
        )
        best = min(free, key=lambda place: place.cost, default=None)
        if best is None:
            return _NO_PLACE, []
        found[number] = best
    return sum(p.cost for p in found.values()), [found[i] for i in range(len(points))]


def _candidates(axes: "Axes", point: Point, size: tuple[float, float]) -> "Iterator[_Place]":
    """Yield the places for a label within the axes, the better ones of a distance first."""
    from matplotlib.transforms import Bbox

    pixels = axes.figure.dpi / 72
    x, y = axes.transData.transform((point.x, point.y))
    wide, high = size
    for distance, (rank, angle) in itertools.product(_DISTANCES, enumerate(_ANGLES)):
        across = distance * math.cos(math.radians(angle))
        up = distance * math.sin(math.radians(angle))
        left = x + across * pixels - wide * (0.5 if abs(across) < 1 else 0 if across > 0 else 1)
        low = y + up * pixels - high * (0.5 if abs(up) < 1 else 0 if up > 0 else 1)
        box = Bbox.from_bounds(left - 2, low - 1, wide + 4, high + 2)
        if not (axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1)):
            continue
        led = distance >= _LED_FROM
        start = float(np.clip(x, box.x0, box.x1)), float(np.clip(y, box.y0, box.y1))
        line = (start, (x, y)) if led else None
        yield _Place(across, up, box, line, distance + rank / 2 + (_LINE if led else 0))


def _crosses(line: tuple[tuple[float, float], tuple[float, float]], box: "Bbox") -> bool:
    """Return whether a line from one end to another meets a box, but for its last pixels."""
    (x0, y0), (x1, y1) = line
    parts = np.linspace(0.02, 0.98, 33)
    across, up = x0 + parts * (x1 - x0), y0 + parts * (y1 - y0)
    inside = (box.x0 < across) & (across < box.x1) & (box.y0 < up) & (up < box.y1)
    return bool(inside.any())


def _write(axes: "Axes", point: Point, place: _Place) -> None:
    ha, va = place.alignment
    text = axes.annotate(
        point.name,
        (point.x, point.y),
        (place.across, place.up),
        textcoords="offset points",
        color=point.look.color,
        ha=ha,
        va=va,
        parse_math=False,
    )
    if place.line is not None:
        (x0, y0), (x1, y1) = axes.transData.inverted().transform(place.line)
        look = {"alpha": 0.6, "linewidth": 0.8, "linestyle": ":", "zorder": 1}
        axes.annotate(
            "",
            (x1, y1),
            (x0, y0),
            arrowprops={
                "arrowstyle": "-", "shrinkA": 0, "shrinkB": 5, "color": point.look.color, **look,
            },
        )  # fmt: skip
    text.set_zorder(5)


def _size(axes: "Axes", point: Point) -> tuple[float, float]:
    """Return the width and height of a point's label, in pixels."""
    text: Annotation = axes.annotate(point.name, (point.x, point.y), parse_math=False)
    box = text.get_window_extent()
    text.remove()
    return box.width, box.height


def _drawn(
    axes: "Axes", points: Sequence[Point], line: Sequence[tuple[float, float]]
) -> "list[list[Bbox]]":
    """Return boxes, in pixels, around each point and its bars, and last the pieces of the line."""
    from matplotlib.transforms import Bbox

    def box(ends: Sequence[tuple[float, float]], around: float) -> "Bbox":
        corners = axes.transData.transform(ends)
        low, high = corners.min(0) - around, corners.max(0) + around
        return Bbox.from_extents(*low, *high)

    marker = axes.figure.dpi / 72 * 5
    found = [
        [*(box(ends, 1) for ends in _bars(point)), box([(point.x, point.y)], marker)]
        for point in points
    ]
    return [*found, [box(piece, 1) for piece in itertools.pairwise(line)]]


def _bars(point: Point) -> Iterator[list[tuple[float, float]]]:
    yield [(min(point.xs), point.y), (max(point.xs), point.y)]
    yield [(point.x, min(point.ys)), (point.x, max(point.ys))]
