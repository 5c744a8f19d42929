"""The kind `time`: compute, compression and communication of a step on each network, stacked.

The fastest comes first in each panel, unless an order was asked for. A tick across a bar marks the
time of a step that sends its whole gradient by an all-reduce.
"""

import statistics
import textwrap
from typing import TYPE_CHECKING

from ..network_prices import PriceRow, milliseconds, prices
from .request import Request
from .style import BLUE, GREEN, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = {  # color, hatch
    "compute": (SKY, ""),
    "stragglers": (GREEN, "xxx"),
    "compression": (ORANGE, "///"),
    "communication": (BLUE, "..."),
}
_BAR_INCHES = 0.24


def draw(request: Request) -> "Figure":
    """Draw a panel for each network, and in it a bar for each group, the mean of its runs."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    bars = len(request.groups)
    names = [textwrap.fill(group.name, request.theme.wrap) for group in request.groups]
    lines = 1 + max(name.count("\n") for name in names)
    heights = max(0.5, max(_BAR_INCHES, 0.16 * lines + 0.04) * bars + 0.3)
    width, _ = request.theme.panel
    figure = NotebookFigure(
        width, (heights + 0.35) * len(request.networks) + 0.7, request.appearance.title
    )
    panels = figure.subplots(len(request.networks), 1, squeeze=False)[:, 0]
    priced = [prices(group.runs, request.networks, request.pricing) for group in request.groups]
    differ = False
    for axes, network in zip(panels, request.networks, strict=True):
        rows = [_mean([row for row in of if row["network"] == network.name]) for of in priced]
        differ = differ or any(row["stragglers"] for row in rows)
        by_time = sorted(range(bars), key=lambda i, rows=rows: rows[i]["total"])  # type: ignore[misc]
        places = range(bars) if request.ordered else by_time
        _panel(axes, [rows[i] for i in places], room=1.36 if request.theme.fixed else 1.22)
        axes.set_yticks(range(bars), [names[i] for i in places])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
        axes.set_title(network.name, loc="left", fontsize="medium", fontweight="bold")
    panels[-1].set_xlabel("milliseconds a step")
    shown = [part for part in _PARTS if part != "stragglers" or differ]
    _legend(figure, shown, request.theme.fixed, below=request.appearance.title is not None)
    return figure


def _mean(rows: list[PriceRow]) -> dict[str, float]:
    """Return the means over runs of the milliseconds of a step, by part."""
    return {
        "compute": statistics.fmean(row["compute_ms"] for row in rows),
        "stragglers": statistics.fmean(row["stragglers_ms"] for row in rows),
        "compression": statistics.fmean(row["compression_ms"] for row in rows),
        "communication": statistics.fmean(row["communication_ms"] for row in rows),
        "total": statistics.fmean(row["total_ms"] for row in rows),
        "dense": statistics.fmean(row["dense_ms"] for row in rows),
    }


def _panel(axes: "Axes", rows: list[dict[str, float]], room: float) -> None:
    for place, row in enumerate(rows):
        start = 0.0
        for part, (color, hatch) in _PARTS.items():
            if part == "stragglers" and not row[part]:
                continue
            axes.barh(
                place,
                row[part],
                0.62,
                start,
                color=color,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
                zorder=2,
            )
            start += row[part]
        axes.plot([row["dense"]] * 2, [place - 0.42, place + 0.42], color="black", zorder=3)
    end = max(max(row["total"], row["dense"]) for row in rows)
    for place, row in enumerate(rows):
        past = max(row["total"], row["dense"])
        if row["dense"] - row["total"] > (room - 1) * end:  # room before the tick
            past = row["total"]
        axes.text(
            past + 0.015 * end, place, milliseconds(row["total"]), va="center", fontsize="small"
        )
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, room * end))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _legend(figure: "Figure", parts: list[str], narrow: bool, below: bool) -> None:
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=part)
        for part, (color, hatch) in _PARTS.items()
        if part in parts
    ]
    dense = Line2D([], [], color="black", marker="|", markersize=9, linestyle="none")
    dense.set_label("dense all-reduce")
    figure.legend(
        handles=[*handles, dense],
        loc="outside lower center" if below else "outside upper center",
        ncols=2 if narrow else 4 if len(handles) < 4 else 3,
        handlelength=1.6,
        columnspacing=1.2,
    )
