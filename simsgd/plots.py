"""Figures from run folders: several runs in one figure, one panel for each quantity.

Up to four runs are named where their lines end, more in a legend at the right. Colours are told
apart by the colour-blind, line styles and markers in grey. The best error or loss of a run is a
dot. Bytes are in binary units (1 MiB = 2**20 bytes). An axis of bytes is logarithmic along x, and
so is a y axis whose values are positive and span more than a factor of twenty.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .labels import Curve, draw_legend, name_at_the_lines
from .language import DERIVED
from .run import Run
from .settings import SettingError, require, unknown
from .tables import EPOCH_COLUMNS, STEP_COLUMNS
from .ticks import set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "train_perplexity": "training perplexity",
    "val_perplexity": "validation perplexity",
    "val_bits": "validation loss (bits per token)",
    "payload_bytes": "bytes sent per worker",
    "payload_bytes_min": "bytes sent, least worker",
    "payload_bytes_max": "bytes sent, most worker",
    "dense_bytes": "dense bytes per worker",
    "network_bytes": "network bytes per worker",
    "sent_elements": "numbers sent per worker",
    "relative_error": "relative compression error",
    "memory_norm": "norm of the memory",
    "ratio": "dense bytes / bytes sent",
    "consensus_distance": "consensus distance",
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


def plot_results(
    runs: "Sequence[Run | Path | str]",
    x: str = "epoch",
    y: str | Sequence[str] = ("val_error1",),
    path: Path | str | None = None,
) -> "Figure":
    """Draw columns of several runs against epoch, step or bytes, and save the figure if asked.

    x: `epoch`, `step`, or `bytes` (sent per worker since the start, on a logarithmic axis).
    y: columns of epochs.csv, a panel each, val_perplexity and the like if the data are text; with
    x = step, columns of steps.csv go first.
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
            save(figure, Path(path))
    return figure


def _check(runs: Sequence[Any], x: str, shown: list[str], path: Path | str | None) -> None:
    require(len(runs) > 0, "run", None, "must name at least one run folder")
    require(len(shown) > 0, "y", None, "must name at least one column")
    if x not in ("epoch", "step", "bytes"):
        raise unknown("x", x, ["epoch", "step", "bytes"])
    columns = {*EPOCH_COLUMNS, *DERIVED, *(STEP_COLUMNS if x == "step" else ())} - {"epoch", "step"}
    for column in shown:
        if column not in columns:
            raise unknown("y", column, columns)
    if path is not None:
        check_output(path)


def _curves(runs: Sequence[Run], x: str, column: str) -> list[Curve]:
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    many = len(runs) > _most_named_at_the_line
    return [
        Curve(textwrap.fill(name, 32), *_points(run, x, column), look=_look(place, many))
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


def _draw(panels: list[list[Curve]], x: str, shown: list[str]) -> "Figure":
    from .figure import NotebookFigure  # here: it imports matplotlib

    width, height = _panel_inches
    figure = NotebookFigure(width, height * len(panels) ** 0.8)
    rows = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for axes, curves, column in zip(rows, panels, shown, strict=True):
        _panel(axes, curves, column)
        axes.set_ylabel(LABELS[column] + _per(x, column))
    _across(rows[-1], [curve for curves in panels for curve in curves], x)
    if len(panels[0]) > _most_named_at_the_line:
        draw_legend(figure, panels[0])
    else:
        name_at_the_lines(figure, rows, panels)
    return figure


def _per(x: str, column: str) -> str:
    of_steps = x == "step" and column in STEP_COLUMNS
    if column == "seconds":
        return " per step" if of_steps else " per epoch"
    return " and step" if of_steps and column.endswith("_bytes") else ""


def _panel(axes: "Axes", curves: list[Curve], column: str) -> None:
    import numpy as np

    for curve in curves:
        alone = {"marker": "o"} if len(curve.x) == 1 else {}
        axes.plot(curve.x, curve.y, **{**curve.look, **alone})
        if column.endswith(("error1", "error5", "loss", "perplexity", "bits")):
            best = int(np.argmin(curve.y))
            dot = {"color": curve.look["color"], "markeredgecolor": "white", "markersize": 8}
            axes.plot(curve.x[best], curve.y[best], "o", zorder=5, **dot)
    values = np.concatenate([curve.y for curve in curves])
    if values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale("log")
    set_ticks(axes.yaxis, values, in_bytes="bytes" in column)


def _across(axes: "Axes", curves: list[Curve], x: str) -> None:
    import numpy as np

    axes.set(xlabel=LABELS[x], xscale="log" if x == "bytes" else "linear")
    values = np.concatenate([curve.x for curve in curves])
    if values.min() == values.max():  # a single point: leave room for ticks
        low, high = (values[0] / 2, values[0] * 2) if x == "bytes" else values[0] + [-0.5, 0.5]
        axes.set_xlim(low, high)
        values = np.array([low, high])
    set_ticks(axes.xaxis, values, in_bytes=x == "bytes", whole=x != "bytes")


def check_output(path: Path | str) -> None:
    """Raise `SettingError` unless a figure can have this name."""
    known = Path(path).suffix.lower() in (".png", ".svg", ".pdf")
    require(known, "output", str(path), "must end in .png, .svg or .pdf")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure. Raises `SettingError` for another suffix or a place that cannot be."""
    check_output(path)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        figure.savefig(path, dpi=200, metadata=metadata)
    except OSError as wrong:
        raise SettingError("output", str(path), f"cannot be written ({wrong.strerror})") from wrong
