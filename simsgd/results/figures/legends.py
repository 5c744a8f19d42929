"""The names of a figure's lines: at the ends of few lines, in a legend for more."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .style import GRAY, Look
from .thinning import shown_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A run's line in one panel."""

    name: str
    x: Floats  # [points], finite, as is y
    y: Floats
    look: Look
    low: Floats | None = None  # of the runs that y is the mean of, [points]
    high: Floats | None = None
    raw: Floats | None = None  # y before it was smoothed, [points]

    @property
    def heights(self) -> list[Floats]:
        """All that is drawn along y."""
        return [part for part in (self.y, self.low, self.high, self.raw) if part is not None]

    def thinned(self) -> "Curve":
        """Return the curve with the points that show it, of a long one."""
        shown = shown_points(self.heights)
        if len(shown) == len(self.x):
            return self
        names = ("x", "y", "low", "high", "raw")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{n: p[shown] for n, p in parts.items() if p is not None})


def name_curves(
    figure: "Figure",
    rows: Sequence["Axes"],
    panels: list[list[Curve]],
    place: str,
    fixed: bool = False,
) -> None:
    """Name the curves, and lay the figure out.

    They are named at the ends of the `lines`, or in a legend `outside` or `inside` of the panels.
    A `fixed` figure stays as wide as it is: its legend lies below, and so do names that would take
    more than a third of it.
    """
    looks, names = [c.look for c in panels[0]], [c.name for c in panels[0]]
    if place == "none":
        settle(figure)
    elif place == "inside":
        draw_legend_inside(rows[0], looks, names)
        settle(figure)
    elif place == "outside" or (fixed and _widest(figure, panels[0]) > 1 / 3):
        draw_legend(figure, looks, names, below=fixed)
    else:
        _name_at_the_lines(figure, rows, panels, fixed)


def draw_legend(
    figure: "Figure", looks: Sequence[Look], names: Sequence[str], below: bool = False
) -> None:
    """Put names in a legend at the right or below, and make the figure as large as it needs."""
    handles = _handles(looks)
    for columns in range(min(3, len(names)) if below else 1, 0, -1):
        legend = figure.legend(
            handles,
            ["" for _ in names],  # set below: a legend drops a name that begins with _
            loc="outside lower center" if below else "outside right upper",
            labelspacing=0.7,
            ncols=columns,
        )
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set(text=name, parse_math=False)
        box = legend.get_window_extent()
        if columns == 1 or box.width <= 0.95 * figure.bbox.width:
            break
        legend.remove()
    width, height = figure.get_size_inches()
    wide, high = box.width / figure.dpi, box.height / figure.dpi
    if below:
        figure.set_size_inches(width, height + high)
    else:
        figure.set_size_inches(width + wide, max(height, high + 0.2))
    settle(figure)


def draw_legend_inside(axes: "Axes", looks: Sequence[Look], names: Sequence[str]) -> None:
    """Put names in a legend where a panel has most room."""
    legend = axes.legend(_handles(looks), ["" for _ in names], loc="best")
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, parse_math=False)


def _handles(looks: Sequence[Look]) -> "list[Line2D]":
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=look.color, linestyle=look.linestyle, marker=look.marker)
        for look in looks
    ]


def _widest(figure: "Figure", curves: list[Curve]) -> float:
    """Return the width of the longest name, over that of the figure."""
    texts = [figure.text(0, 0, curve.name, parse_math=False) for curve in curves]
    widths = [text.get_window_extent().width for text in texts]
    for text in texts:
        text.remove()
    return max(widths) / figure.bbox.width


def _name_at_the_lines(
    figure: "Figure", rows: Sequence["Axes"], panels: list[list[Curve]], fixed: bool
) -> None:
    """Write each name at the right edge, at its line's height or as near as the others allow.

    A thin line leads from where a run ends to its name.
    """
    panes = list(zip(rows, panels, strict=True))
    texts = [[_name(axes, curve) for curve in curves] for axes, curves in panes]
    widest = max(text.get_window_extent().width for text in itertools.chain(*texts))
    width, height = figure.get_size_inches()
    if not fixed:
        figure.set_size_inches(width + widest / figure.dpi, height)
    settle(figure)
    for (axes, curves), names in zip(panes, texts, strict=True):
        ends = [_end_of(axes, curve) for curve in curves]
        heights = [name.get_window_extent().height / axes.bbox.height for name in names]
        places = _spread([y for _, y in ends], heights)
        for curve, name, end, place in zip(curves, names, ends, places, strict=True):
            name.set_y(place)
            _lead(axes, curve, end, place)


def _name(axes: "Axes", curve: Curve) -> "Text":
    return axes.text(
        1.05,
        0.5,
        curve.name,
        color=curve.look.color,
        parse_math=False,
        transform=axes.transAxes,
        verticalalignment="center",
    )


def settle(figure: "Figure") -> None:
    """Lay the figure out, once and for all."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _end_of(axes: "Axes", curve: Curve) -> tuple[float, float]:
    """Return where a line ends, or leaves the panel at the right, as fractions of the axes."""
    points = axes.transData.transform(np.column_stack([curve.x, curve.y]))
    across, up = axes.transAxes.inverted().transform(points).T
    x = min(float(across[-1]), 1.0)
    return x, float(np.clip(np.interp(x, across, up), 0, 1))


def _lead(axes: "Axes", curve: Curve, end: tuple[float, float], place: float) -> None:
    x, y = end
    axes.plot(
        [x, 1.0, 1.04],
        [y, y, place],
        color=GRAY,
        linestyle=":",
        linewidth=0.7,
        transform=axes.transAxes,
        clip_on=False,
        scalex=False,
        scaley=False,
    )


def _spread(wanted: list[float], heights: list[float]) -> list[float]:
    """Return places in [0, 1] nearest to those wanted (least squares) that do not overlap.

    Less the room of the names below it, each place is a monotone regression: neighbors in the
    wrong order are pooled at their mean.

    >>> _spread([0.5, 0.5], [0.1, 0.1])
    [0.445, 0.555]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    sizes = [heights[i] for i in order]
    apart = (0.55 * (low + high) for low, high in itertools.pairwise(sizes))
    room = list(itertools.accumulate(apart, initial=0.0))  # above the center of the lowest
    pools: list[tuple[float, int]] = []  # mean, members
    for i, below in zip(order, room, strict=True):
        mean, members = wanted[i] - below, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean = (mean * members + other * others) / (members + others)
            members += others
        pools.append((mean, members))
    means = itertools.chain.from_iterable([mean] * members for mean, members in pools)
    least, most = sizes[0] / 2, 1 - sizes[-1] / 2 - room[-1]
    places = [max(least, min(mean, most)) + below for mean, below in zip(means, room, strict=True)]
    return [round(places[order.index(i)], 6) for i in range(len(wanted))]
