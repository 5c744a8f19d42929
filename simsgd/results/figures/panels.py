"""Square panels side by side, one for each run or group of runs."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .style import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BESIDE, _MOST_IN_A_COLUMN = 4, 2  # panels


def panels(
    titles: Sequence[str], theme: Theme, inches: float, title: str | None = None
) -> "tuple[Figure, list[Axes]]":
    """Return a figure and its panels, which are `inches` wide unless the theme is fixed."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    columns = min(len(titles), _MOST_IN_A_COLUMN if theme.fixed else _MOST_BESIDE)
    rows = math.ceil(len(titles) / columns)
    side = theme.panel[0] / columns if theme.fixed else inches
    letters = max(8, int(side * 72 / (0.62 * float(theme.look["font.size"]))))
    wrapped = [textwrap.fill(name, letters) for name in titles]
    lines = 1 + max(name.count("\n") for name in wrapped)
    below = 0.07 * float(theme.look["axes.labelsize"])  # for what colors mean
    beside = below if theme.fixed else 0.9
    width = theme.panel[0] if theme.fixed else side * columns + beside
    high = side + 0.17 * lines + 0.4
    figure = NotebookFigure(width, high * rows + (beside if theme.fixed else 0.1), title)
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in every[len(titles) :]:
        axes.remove()
    for axes, name in zip(every, wrapped, strict=False):
        axes.set_title(name, fontsize=theme.look["font.size"], parse_math=False)
        axes.grid(visible=False)
    return figure, every[: len(titles)]
