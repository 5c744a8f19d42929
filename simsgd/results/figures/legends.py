"""The names of a figure's lines: at the ends of few lines, in a legend for more."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .style import GRAY, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
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


def name_curves(
    figure: "Figure",
    rows: Sequence["Axes"],
    panels: list[list[Curve]],
    at_the_lines: bool,
    fixed: bool = False,
) -> None:
    """Name the curves at their lines' ends or in a legend, and lay the figure out.

    A `fixed` figure stays as wide as it is: its legend lies below, and so do names that would take
    more than a third of it.
    """
    if at_the_lines and not (fixed and _widest(figure, panels[0]) > 1 / 3):
        _name_at_the_lines(figure, rows, panels, fixed)
        return
    curves = panels[0]
    draw_legend(figure, [c.look for c in curves], [c.name for c in curves], below=fixed)


def draw_legend(
    figure: "Figure", looks: Sequence[Look], names: Sequence[str], below: bool = False
) -> None:
    """Put names in a legend at the right or below, and make the figure as large as it needs."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.color, linestyle=look.linestyle, marker=look.marker)
        for look in looks
    ]
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
    """Return where a line ends, as fractions of the axes."""
    end = axes.transData.transform((curve.x[-1], curve.y[-1]))
    x, y = axes.transAxes.inverted().transform(end)
    return float(x), float(y)


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
