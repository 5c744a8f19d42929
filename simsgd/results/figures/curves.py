"""The kind `curves`: columns against epoch, step, bytes or simulated seconds, a panel each.

Runs that differ in their seed alone are one line, their mean, in a band from least to most. The
best value of a metric or loss is a dot. An axis of bytes is logarithmic along x, and so is a y axis
whose values are positive and span more than a factor of twenty.
"""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from ..metric import higher_is_better
from ..tables import ALL_STEP_COLUMNS
from .appearance import Limits
from .legends import Curve, name_curves
from .request import Request
from .series import OF_STEPS, curves_of
from .style import DARK_GRAY
from .ticks import set_ticks, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED_AT_THE_LINE = 4
_FAR = 1e4
LABELS = {
    "epoch": "epoch",
    "step": "step",
    "samples": "training samples",
    "tokens": "training tokens",
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
    "train_accuracy": "training accuracy (%)",
    "val_accuracy": "validation accuracy (%)",
    "train_pixel_error": "training pixel error (%)",
    "val_pixel_error": "validation pixel error (%)",
    "val_bits": "validation loss (bits per token)",
    "payload_bytes": "bytes sent per worker",
    "payload_bytes_min": "bytes sent, least worker",
    "payload_bytes_max": "bytes sent, most worker",
    "dense_bytes": "dense bytes per worker",
    "network_bytes": "network bytes per worker",
    "received_bytes": "bytes received per worker",
    "received_bytes_max": "bytes received, most worker",
    "busiest_link_bytes": "bytes on the busiest link",
    "sent_elements": "numbers sent per worker",
    "relative_error": "relative compression error",
    "memory_norm": "norm of the memory",
    "gradient_square": "squared norm of the gradient, estimate",
    "gradient_variance": "variance of a sample's gradient",
    "noise_scale": "gradient noise scale (samples)",
    "compute_seconds": "a worker's compute (s)",
    "compression_seconds": "a worker's compression (s)",
    "ratio": "dense bytes / bytes sent",
    "consensus_distance": "consensus distance",
    "seconds": "time (s)",
}


def label_of(column: str) -> str:
    """Return the label of a column's axis: its name where there is no better one."""
    if column in LABELS:
        return LABELS[column]
    part, _, name = column.partition("_")
    words = {"train": "training", "val": "validation"}.get(part, part)
    return f"{words} {name}".strip().replace("_", " ")


def draw(request: Request) -> "Figure":
    """Draw a panel for each column asked for."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    marked = len(request.groups) > MOST_NAMED_AT_THE_LINE  # in gray, dashes alone are too few
    panels = [curves_of(request, column, marked) for column in request.y]
    width, height = request.theme.panel
    figure = NotebookFigure(width, height * len(panels) ** 0.8, request.appearance.title)
    rows = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    metrics = request.metrics
    for axes, curves, column in zip(rows, panels, request.y, strict=True):
        _panel(axes, curves, column, request, higher_is_better(column, metrics))
        label = label_of(column) + _per(request.x, column)
        axes.set_ylabel(textwrap.fill(label, request.theme.wrap))
    _across(rows[-1], [curve for curves in panels for curve in curves], request)
    place = request.appearance.legend or ("outside" if marked else "lines")
    name_curves(figure, rows, panels, place, fixed=request.theme.fixed)
    thin_out(rows[-1].xaxis)
    return figure


def _per(x: str, column: str) -> str:
    of_steps = x in OF_STEPS and column in ALL_STEP_COLUMNS
    if column == "seconds":
        return " per step" if of_steps else " per epoch"
    return " and step" if of_steps and column.endswith("_bytes") else ""


def _panel(
    axes: "Axes", curves: list[Curve], column: str, request: Request, higher: bool | None
) -> None:
    for curve in curves:
        color = curve.look.color
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
        if curve.raw is not None:
            axes.plot(curve.x, curve.raw, color=color, alpha=0.25, linewidth=0.7)
        axes.plot(
            curve.x,
            curve.y,
            color=color,
            linestyle=curve.look.linestyle,
            marker="o" if len(curve.x) == 1 else curve.look.marker,
            markevery=None if len(curve.x) == 1 else curve.look.markevery,
            label=curve.name,
        )
        if higher is not None:
            _mark_best(axes, curve, request, higher)
    below = [] if request.appearance.ylim else _far_below(curves)
    shown = [curve for curve in curves if all(curve is not other for other in below)]
    values = np.concatenate([part for curve in shown for part in curve.heights])
    ticked = request.appearance.scale_y(axes, values)
    if below:
        _leave_below(axes, below, float(values.min()))
    set_ticks(axes.yaxis, ticked, in_bytes="bytes" in column)


def _mark_best(axes: "Axes", curve: Curve, request: Request, higher: bool) -> None:
    """Draw a dot at the best value, whole where it lies at the end of an axis."""
    best = int(np.argmax(curve.y) if higher else np.argmin(curve.y))
    x, y = float(curve.x[best]), float(curve.y[best])
    size, own = request.theme.best, request.appearance
    axes.plot(
        x,
        y,
        "o",
        color=curve.look.color,
        markeredgecolor="white",
        markeredgewidth=size / 8,
        markersize=size,
        zorder=5,
        clip_on=not (_within(x, own.xlim) and _within(y, own.ylim)),
    )


def _within(value: float, limits: Limits | None) -> bool:
    return limits is None or limits[0] <= value <= limits[1]


def _far_below(curves: list[Curve]) -> list[Curve]:
    """Return curves that would squeeze the others on a logarithmic axis.

    They lie below all others by a factor of `_FAR` or more, as the consensus distances of 1e-8 do
    that rounding makes.
    """
    by_height = sorted(curves, key=lambda curve: float(curve.y.max()))
    for number in range(len(curves) - 1, 0, -1):
        top = float(by_height[number - 1].y.max())
        bottom = min(float(part.min()) for curve in by_height[number:] for part in curve.heights)
        if 0 < top * _FAR <= bottom:
            return by_height[:number]
    return []


def _leave_below(axes: "Axes", below: list[Curve], lowest: float) -> None:
    """Let a panel end below the `lowest` value of the curves that it is scaled to.

    A text has the largest value of each of those below; a linear axis shows them, at zero.
    """
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        return
    axes.set_ylim(bottom=0.7 * lowest)
    each = [f"{curve.name}: at most {curve.y.max():.1g}" for curve in below]
    axes.text(
        0.02, 0.03, "\n".join(["below:", *each]), transform=axes.transAxes, fontsize="small",
        color=DARK_GRAY, parse_math=False,
    )  # fmt: skip


def _across(axes: "Axes", curves: list[Curve], request: Request) -> None:
    x, in_bytes = request.x, request.x == "bytes"
    label = f"simulated seconds on {request.networks[0].name}" if x == "seconds" else LABELS[x]
    axes.set_xlabel(label)
    values = np.concatenate([curve.x for curve in curves])
    values = request.appearance.scale_x(axes, values, log=in_bytes)
    if values.min() == values.max():  # a single point: leave room for ticks
        only = float(values[0])
        low, high = (only / 2, only * 2) if axes.get_xscale() == "log" else (only - 0.5, only + 0.5)
        axes.set_xlim(low, high)
        values = np.array([low, high])
    set_ticks(axes.xaxis, values, in_bytes=in_bytes, whole=x in ("epoch", *OF_STEPS))
