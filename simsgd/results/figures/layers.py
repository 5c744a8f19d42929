"""The kind `layers`: bytes and compression error of each layer, in a step of the last epoch."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...settings import SettingError
from ..run_tables import RunTables
from .legends import draw_legend
from .request import Request
from .run_groups import Group
from .style import Look, marker_of
from .ticks import set_ticks, thin_out

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_INCHES = 0.19
_SHOWN = ["elements", "payload_bytes", "relative_error"]


def draw(request: Request) -> "Figure":
    """Draw a row for each layer, in the order of the model, and a marker for each group."""
    from .canvas import TITLE_INCHES, NotebookFigure  # here: it imports matplotlib

    tables = [_means(group) for group in request.groups]
    rows = list(dict.fromkeys(name for table in tables for name in table.index))
    elements = {name: int(n) for table in tables for name, n in table["elements"].items()}
    width, height = request.theme.panel
    figure = NotebookFigure(
        width * (1 if request.theme.fixed else 1.35), height, request.appearance.title
    )
    left, right = figure.subplots(1, 2, sharey=True)
    looks = [marker_of(group.place) for group in request.groups]
    for axes, column in ((left, "payload_bytes"), (right, "relative_error")):
        _panel(axes, request.groups, tables, looks, rows, column)
    left.set_yticks(range(len(rows)), [f"{name}  {elements[name]:,}" for name in rows])
    for label in left.get_yticklabels():
        label.set_parse_math(False)
    left.set_ylim(len(rows) - 0.4, -0.6)
    _bytes_across(left, tables)
    left.set_xlabel("bytes sent\nper step")
    right.set(xlabel="relative\nerror", xlim=(-0.04, 1.04))
    high = max(_ROW_INCHES, 0.075 * len(tables)) * len(rows)
    above = TITLE_INCHES if request.appearance.title else 0.0
    figure.set_size_inches(figure.get_size_inches()[0], max(2.0, high + 0.9) + above)
    names = [textwrap.fill(group.name, request.theme.wrap) for group in request.groups]
    draw_legend(figure, looks, names, below=request.theme.fixed)
    thin_out(left.xaxis)
    thin_out(right.xaxis)
    return figure


def _means(group: Group) -> "pd.DataFrame":
    """Return the means over the group's runs and the steps of their last epochs, by segment."""
    import pandas as pd

    tables = pd.concat([_last(run) for run in group.runs])
    return tables.groupby("segment", sort=False)[_SHOWN].mean()


def _last(run: RunTables) -> "pd.DataFrame":
    layers, steps = run.layers, run.steps
    if layers.empty:
        fix = "train it with --log-layers"
        raise SettingError("run", str(run.folder), "has no layers.csv", fix)
    lacking = [name for name in ("segment", *_SHOWN) if name not in layers]
    if lacking:
        rule = f"has a layers.csv without the columns {', '.join(lacking)}"
        raise SettingError("run", str(run.folder), rule)
    last = steps.loc[steps["epoch"] == steps["epoch"].max(), "step"]
    return layers[layers["step"].isin(last)]


def _panel(
    axes: "Axes",
    groups: Sequence[Group],
    tables: "list[pd.DataFrame]",
    looks: list[Look],
    rows: list[str],
    column: str,
) -> None:
    places = {name: place for place, name in enumerate(rows)}
    count = len(tables)
    for number, (group, table, look) in enumerate(zip(groups, tables, looks, strict=True)):
        aside = 0.0 if count == 1 else 0.7 * (number / (count - 1) - 0.5)  # of a row
        up = [places[name] + aside for name in table.index]
        axes.plot(
            table[column],
            up,
            color=look.color,
            linestyle=look.linestyle,
            marker=look.marker,
            clip_on=False,
            zorder=3,
            label=group.name,
        )
    axes.tick_params(axis="y", length=0)


def _bytes_across(axes: "Axes", tables: "list[pd.DataFrame]") -> None:
    sent = np.concatenate([table["payload_bytes"].to_numpy("float64") for table in tables])
    sent = sent[sent > 0]
    if not len(sent):
        return
    axes.set_xscale("log")
    if sent.min() == sent.max():
        axes.set_xlim(sent[0] / 2, sent[0] * 2)
    set_ticks(axes.xaxis, sent, in_bytes=True)
