"""The kind `timeline`: what device and link do in a step, a panel for each run and network.

It is the last step that sends something, of the first run of a group. A number is that of a bucket,
in the order in which they are sent; a line, where there is room, and the title say when a step ends
that sends its whole gradient.
"""

import textwrap
from typing import TYPE_CHECKING

from ...units import counted
from ..network import Network
from ..network_prices import milliseconds
from ..step_spans import StepSpans, step_spans
from .request import Request
from .style import BLUE, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = {  # row, color, hatch
    "forward": (0, "#B5DDF3", ""),
    "backward": (0, SKY, ""),
    "compression": (0, ORANGE, "///"),
    "communication": (1, BLUE, "..."),
}
_PANEL_INCHES = 0.62
_NARROWEST_NUMBERED = 0.03  # part of the panel that a bar with a number takes
_FARTHEST_DENSE = 1.3  # times the longest step: dense steps that end later have no line


def draw(request: Request) -> "Figure":
    """Draw a panel for each group and network, all with the same axis of time."""
    from .canvas import NotebookFigure  # here: it imports matplotlib

    pairs = [(group, network) for group in request.groups for network in request.networks]
    found = [step_spans(group.runs[0], network, request.pricing) for group, network in pairs]
    names = [_title(group.name, network, step, request) for (group, network), step in
             zip(pairs, found, strict=True)]  # fmt: skip
    lines = sum(1 + name.count("\n") for name in names)
    width, _ = request.theme.panel
    height = _PANEL_INCHES * len(pairs) + 0.17 * lines + 1.15
    figure = NotebookFigure(width, height, request.appearance.title)
    panels = figure.subplots(len(pairs), 1, squeeze=False, sharex=True)[:, 0]
    end = max(step.end for step in found)
    dense = [step.dense for step in found if step.dense <= _FARTHEST_DENSE * end]
    end = max([end, *dense])
    for axes, step, name in zip(panels, found, names, strict=True):
        _panel(axes, step, end)
        axes.set_title(name, loc="left", fontsize="small", fontweight="bold", parse_math=False)
    panels[-1].set_xlabel("milliseconds")
    below = request.appearance.title is not None
    _legend(figure, request.theme.fixed, below, dense=bool(dense))
    return figure


def _title(name: str, network: Network, step: StepSpans, request: Request) -> str:
    took, dense = (_unbroken(1000 * seconds) for seconds in (step.waited, step.dense))
    late = f", messages needed {counted(step.late, 'step')} later" if step.late else ""
    text = f"{name}, step {step.step}, {network.name}: {took}{late}, dense\u00a0{dense}"
    return textwrap.fill(text, 2 * request.theme.wrap)


def _unbroken(number: float) -> str:
    """Return milliseconds that stay in one line."""
    return milliseconds(number).replace(" ", "\u00a0")


def _panel(axes: "Axes", step: StepSpans, end: float) -> None:
    for span in step.spans:
        row, color, hatch = _LOOKS[span.what]
        start, width = 1000 * span.start, 1000 * (span.end - span.start)
        if width <= 0:
            continue
        edge = 0.6 if row else 0.0  # between buckets on the link
        axes.barh(
            row,
            width,
            0.8,
            start,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=edge,
            zorder=2,
        )
        if span.what == "communication" and width >= 1000 * _NARROWEST_NUMBERED * end:
            axes.text(
                start + width / 2,
                row,
                str(span.bucket + 1),
                ha="center",
                va="center",
                fontsize="x-small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )
    if step.dense <= end:
        axes.axvline(1000 * step.dense, color="black", linewidth=1)
    axes.set_yticks([0, 1], ["device", "link"])
    axes.set(ylim=(1.6, -0.6), xlim=(0, 1000 * end * 1.02))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _legend(figure: "Figure", narrow: bool, below: bool, dense: bool) -> None:
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=what)
        for what, (_, color, hatch) in _LOOKS.items()
    ]
    if dense:
        handles.append(Line2D([], [], color="black", linewidth=1, label="a dense step ends"))
    figure.legend(
        handles=handles,
        loc="outside lower center" if below else "outside upper center",
        ncols=2 if narrow else 3,
        handlelength=1.6,
        columnspacing=1.2,
    )
