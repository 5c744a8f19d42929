"""Figures from run folders: several runs in one figure, one panel for each quantity.

Up to four runs are named where their lines end, more in a legend at the right. Colours are told
apart by the colour-blind, line styles and markers in grey. The best error or loss of a run is a
dot. Bytes are in binary units (1 MiB = 2**20 bytes). An axis of bytes is logarithmic along x, and
so is a y axis whose values are positive and span more than a factor of twenty.
"""

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .runlog import EPOCH_COLUMNS, STEP_COLUMNS, Run, in_units
from .settings import SettingError, require, unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

LABELS = {
    "epoch": "epoch",
    "step": "step",
    "bytes": "bytes sent per worker",
    "lr": "learning rate",
    "kept": "fraction of entries kept",
    "loss": "training loss",
    "train_loss": "training loss",
    "train_error1": "training error@1 (%)",
    "train_error5": "training error@5 (%)",
    "val_loss": "validation loss",
    "val_error1": "validation error@1 (%)",
    "val_error5": "validation error@5 (%)",
    "payload_bytes": "bytes sent per worker",
    "payload_bytes_min": "bytes sent, least worker",
    "payload_bytes_max": "bytes sent, most worker",
    "dense_bytes": "dense bytes per worker",
    "network_bytes": "network bytes per worker",
    "ratio": "dense bytes / bytes sent",
    "seconds": "time (s)",
}
_colours = ["#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9"]
_dashes = ["-", "--", "-.", ":"]
_markers = ["s", "^", "D", "v", "P", "X", "<"]
_style: dict[Any, Any] = {
    "axes.edgecolor": "#666666",
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.labelcolor": "#222222",
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_most_named_at_the_line = 4
_panel_inches = 5.6, 3.4  # width, height


@dataclass(frozen=True)
class _Curve:
    """A run's line in one panel."""

    name: str
    x: Any  # [points], finite, as is y
    y: Any
    look: dict[str, Any]


def plot_results(
    runs: "Sequence[Run | Path | str]",
    x: str = "epoch",
    y: str | Sequence[str] = ("val_error1",),
    path: Path | str | None = None,
) -> "Figure":
    """Draw columns of several runs against epoch, step or bytes, and save the figure if asked.

    x: `epoch`, `step`, or `bytes` (sent per worker since the start, on a logarithmic axis).
    y: columns of epochs.csv, a panel each; with x = step, columns of steps.csv go first.
    path: a .png, .svg or .pdf.

    Raises `SettingError` for an unknown x or y, a run without such values, another suffix.
    """
    import matplotlib as mpl

    shown = [y] if isinstance(y, str) else list(y)
    _check(runs, x, shown, path)
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    panels = [_curves(opened, x, column) for column in shown]
    with mpl.rc_context(_style):
        figure = _draw(panels, x, shown)
        if path is not None:
            _save(figure, Path(path))
    return figure


def _check(runs: Sequence[Any], x: str, shown: list[str], path: Path | str | None) -> None:
    require(len(runs) > 0, "run", None, "must name at least one run folder")
    require(len(shown) > 0, "y", None, "must name at least one column")
    if x not in ("epoch", "step", "bytes"):
        raise unknown("x", x, ["epoch", "step", "bytes"])
    columns = {*EPOCH_COLUMNS, *(STEP_COLUMNS if x == "step" else ())} - {"epoch", "step"}
    for column in shown:
        if column not in columns:
            raise unknown("y", column, columns)
    if path is not None:
        known = Path(path).suffix.lower() in (".png", ".svg", ".pdf")
        require(known, "output", str(path), "must end in .png, .svg or .pdf")


def _curves(runs: Sequence[Run], x: str, column: str) -> list[_Curve]:
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    many = len(runs) > _most_named_at_the_line
    return [
        _Curve(textwrap.fill(name, 32), *_points(run, x, column), look=_look(place, many))
        for place, (name, run) in enumerate(zip(names, runs, strict=True))
    ]


def _points(run: Run, x: str, column: str) -> tuple[Any, Any]:
    import numpy as np

    table = run.steps if x == "step" and column in STEP_COLUMNS else run.epochs
    where = str(run.folder)
    require(len(table) > 0, "run", where, "has nothing to draw, no epoch of it has ended yet")
    across = "payload_bytes" if x == "bytes" else x
    for needed in (across, column):
        require(needed in table, "run", where, f"has no column {needed}")
    at, value = table[across].to_numpy("float64"), table[column].to_numpy("float64")
    drawn = np.isfinite(value) & ((at > 0) | (x != "bytes"))
    require(drawn.any(), "run", where, f"has no values of {column} to draw against {x}")
    return at[drawn], value[drawn]


def _look(place: int, many: bool) -> dict[str, Any]:
    look: dict[str, Any] = {
        "color": _colours[place % len(_colours)],
        "linestyle": _dashes[place % len(_dashes)],
    }
    if many:
        look["marker"] = _markers[place % len(_markers)]
        look["markevery"] = (0.03 * (place % 7), 0.21)  # of the axes' diagonal; not on one another
    return look


def _draw(panels: list[list[_Curve]], x: str, shown: list[str]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _panel_inches
    figure = Figure(figsize=(width, height * len(panels) ** 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    rows = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for axes, curves, column in zip(rows, panels, shown, strict=True):
        _panel(axes, curves, column)
        axes.set_ylabel(LABELS[column] + _per(x, column))
    _across(rows[-1], [curve for curves in panels for curve in curves], x)
    if len(panels[0]) > _most_named_at_the_line:
        _legend(figure, panels[0])
    else:
        _name_at_the_lines(figure, rows, panels)
    return figure


def _per(x: str, column: str) -> str:
    of_steps = x == "step" and column in STEP_COLUMNS
    if column == "seconds":
        return " per step" if of_steps else " per epoch"
    return " and step" if of_steps and column.endswith("_bytes") else ""


def _panel(axes: "Axes", curves: list[_Curve], column: str) -> None:
    import numpy as np

    for curve in curves:
        alone = {"marker": "o"} if len(curve.x) == 1 else {}
        axes.plot(curve.x, curve.y, **{**curve.look, **alone})
        if "error" in column or "loss" in column:
            best = int(np.argmin(curve.y))
            dot = {"color": curve.look["color"], "markeredgecolor": "white", "markersize": 8}
            axes.plot(curve.x[best], curve.y[best], "o", zorder=5, **dot)
    values = np.concatenate([curve.y for curve in curves])
    if values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale("log")
    _set_ticks(axes.yaxis, values, in_bytes="bytes" in column)


def _across(axes: "Axes", curves: list[_Curve], x: str) -> None:
    import numpy as np

    axes.set(xlabel=LABELS[x], xscale="log" if x == "bytes" else "linear")
    values = np.concatenate([curve.x for curve in curves])
    if values.min() == values.max():  # a single point: leave room for ticks
        low, high = (values[0] / 2, values[0] * 2) if x == "bytes" else values[0] + [-0.5, 0.5]
        axes.set_xlim(low, high)
        values = np.array([low, high])
    _set_ticks(axes.xaxis, values, in_bytes=x == "bytes", whole=x != "bytes")


def _set_ticks(axis: "Axis", values: Any, in_bytes: bool, whole: bool = False) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

    low, high, log = float(values.min()), float(values.max()), axis.get_scale() == "log"
    if log:
        major, minor = _log_ticks(low, high, in_bytes)
        axis.set_major_locator(FixedLocator(major))
        axis.set_minor_locator(FixedLocator(minor))
        axis.set_minor_formatter(NullFormatter())
    elif in_bytes:
        axis.set_major_locator(FixedLocator(_even_ticks(low, high, in_bytes)))
    else:
        axis.set_major_locator(MaxNLocator(6, integer=whole, min_n_ticks=1))
    if in_bytes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: in_units(value)))
    elif log:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _log_ticks(low: float, high: float, in_bytes: bool) -> tuple[list[float], list[float]]:
    """Return the ticks with a number, three or more between low and high, and those without."""
    if in_bytes:
        decades = [ten * 1024.0**p for p in range(7) for ten in (1, 10, 100)]
    else:
        decades = [10.0**p for p in range(-30, 31)]
    fine = [digit * decade for decade in decades for digit in range(1, 10)]
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7)):
        ticks = [digit * decade for decade in decades for digit in digits]
        if sum(low <= tick <= high for tick in ticks) >= 3:
            return ticks, fine
    return _even_ticks(0.95 * low, 1.05 * high, in_bytes), []


def _even_ticks(low: float, high: float, in_bytes: bool) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    units = (1024.0**p for p in range(8)) if in_bytes else (1.0,)
    unit = max(unit for unit in units if unit <= max(high, 1.0))
    return [unit * float(tick) for tick in MaxNLocator(5).tick_values(low / unit, high / unit)]


def _legend(figure: "Figure", curves: list[_Curve]) -> None:
    """Put the names in a legend at the right, and make the figure as large as it needs."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **{**c.look, "markevery": None}) for c in curves]
    names = ["" for _ in curves]  # set below: a legend drops a name that begins with _
    legend = figure.legend(handles, names, loc="outside right upper", labelspacing=0.7)
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        text.set(text=curve.name, parse_math=False)
    box = legend.get_window_extent()
    width, height = figure.get_size_inches()
    figure.set_size_inches(
        width + box.width / figure.dpi, max(height, box.height / figure.dpi + 0.2)
    )
    _settle(figure)


def _name_at_the_lines(
    figure: "Figure", rows: Sequence["Axes"], panels: list[list[_Curve]]
) -> None:
    """Write each name at the right edge, at its line's height or as near as the others allow.

    A thin line leads from where a run ends to its name.
    """
    panes = list(zip(rows, panels, strict=True))
    texts = [[_name(axes, curve) for curve in curves] for axes, curves in panes]
    widest = max(text.get_window_extent().width for text in itertools.chain(*texts))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + widest / figure.dpi, height)
    _settle(figure)
    for (axes, curves), names in zip(panes, texts, strict=True):
        ends = [_end(axes, curve) for curve in curves]
        heights = [name.get_window_extent().height / axes.bbox.height for name in names]
        places = _spread([y for _, y in ends], heights)
        for curve, name, end, place in zip(curves, names, ends, places, strict=True):
            name.set_y(place)
            _lead(axes, curve, end, place)


def _name(axes: "Axes", curve: _Curve) -> "Text":
    return axes.text(
        1.05,
        0.5,
        curve.name,
        color=curve.look["color"],
        parse_math=False,
        transform=axes.transAxes,
        verticalalignment="center",
    )


def _settle(figure: "Figure") -> None:
    """Lay the figure out, once and for all."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _end(axes: "Axes", curve: _Curve) -> tuple[float, float]:
    """Return where a line ends, as fractions of the axes."""
    end = axes.transData.transform((curve.x[-1], curve.y[-1]))
    x, y = axes.transAxes.inverted().transform(end)
    return float(x), float(y)


def _lead(axes: "Axes", curve: _Curve, end: tuple[float, float], place: float) -> None:
    x, y = end
    axes.plot(
        [x, 1.0, 1.04],
        [y, y, place],
        color=curve.look["color"],
        alpha=0.45,
        linewidth=0.8,
        transform=axes.transAxes,
        clip_on=False,
        scalex=False,
        scaley=False,
    )


def _spread(wanted: list[float], heights: list[float]) -> list[float]:
    """Return places in [0, 1] nearest to those wanted (least squares) that do not overlap.

    Less the room of the names below it, each place is a monotone regression: neighbours in the
    wrong order are pooled at their mean.

    >>> _spread([0.5, 0.5], [0.1, 0.1])
    [0.445, 0.555]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    sizes = [heights[i] for i in order]
    apart = (0.55 * (low + high) for low, high in itertools.pairwise(sizes))
    room = list(itertools.accumulate(apart, initial=0.0))  # above the centre of the lowest
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


def _save(figure: "Figure", path: Path) -> None:
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        figure.savefig(path, dpi=200, metadata=metadata)
    except OSError as wrong:
        raise SettingError("output", str(path), f"cannot be written ({wrong.strerror})") from wrong
