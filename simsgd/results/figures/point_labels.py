"""Labels beside points, which overlap neither each other nor anything that is drawn."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

_ANGLES = (0, 180, 45, 315, 135, 225, 90, 270)  # degrees, the best first
_DISTANCES = (9, 14, 20, 28, 38)  # points


@dataclass(frozen=True)
class Point:
    """A group of runs at their end: the mean, and all of them."""

    name: str
    x: float  # bytes sent per worker
    y: float
    xs: Sequence[float]
    ys: Sequence[float]
    look: Look


def name_nearby(axes: "Axes", points: Sequence[Point], line: Sequence[tuple[float, float]]) -> bool:
    """Write the name of each point beside it, in its color; return whether all found room.

    `line` is the corners of a line to keep clear of. Where one name finds no room, none is written.
    """
    taken = _drawn(axes, points, line)
    written: list[Annotation] = []
    for point in points:
        place = _place(axes, point, taken)
        if place is None:
            for text in written:
                text.remove()
            return False
        text, box = place
        written.append(text)
        taken.append(box)
    return True


def _place(axes: "Axes", point: Point, taken: "Sequence[Bbox]") -> "tuple[Annotation, Bbox] | None":
    for distance, angle in itertools.product(_DISTANCES, _ANGLES):
        across = distance * math.cos(math.radians(angle))
        up = distance * math.sin(math.radians(angle))
        text = axes.annotate(
            point.name,
            (point.x, point.y),
            (across, up),
            textcoords="offset points",
            color=point.look.color,
            ha="center" if abs(across) < 1 else "left" if across > 0 else "right",
            va="center" if abs(up) < 1 else "bottom" if up > 0 else "top",
            parse_math=False,
            arrowprops=_lead(point) if distance > _DISTANCES[1] else None,
        )
        box = _box(text)
        inside = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1)
        if inside and not any(box.overlaps(other) for other in taken):
            return text, box
        text.remove()
    return None


def _lead(point: Point) -> dict[str, object]:
    look = {"color": point.look.color, "alpha": 0.6, "linewidth": 0.8, "linestyle": ":"}
    return {"arrowstyle": "-", "shrinkA": 0, "shrinkB": 4, **look}  # dotted: no data are


def _box(text: "Annotation") -> "Bbox":
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    text.update_positions(text.get_figure().canvas.get_renderer())  # type: ignore[union-attr]
    box = Text.get_window_extent(text)  # of the words, without the line that leads to them
    return Bbox.from_extents(box.x0 - 2, box.y0 - 1, box.x1 + 2, box.y1 + 1)


def _drawn(
    axes: "Axes", points: Sequence[Point], line: Sequence[tuple[float, float]]
) -> "list[Bbox]":
    """Return boxes, in pixels, around the points, their bars and the pieces of the line."""
    from matplotlib.transforms import Bbox

    def box(ends: Sequence[tuple[float, float]], around: float) -> "Bbox":
        corners = axes.transData.transform(ends)
        low, high = corners.min(0) - around, corners.max(0) + around
        return Bbox.from_extents(*low, *high)

    found = [box(piece, 1) for piece in itertools.pairwise(line)]
    for point in points:
        found.extend(box(ends, 1) for ends in _bars(point))
        found.append(box([(point.x, point.y)], axes.figure.dpi / 72 * 5))
    return found


def _bars(point: Point) -> Iterator[list[tuple[float, float]]]:
    yield [(min(point.xs), point.y), (max(point.xs), point.y)]
    yield [(point.x, min(point.ys)), (point.x, max(point.ys))]
