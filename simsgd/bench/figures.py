"""Draws benches: a step's time over that of plain SGD, and how it grows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.figures.style import (
    BLACK,
    BLUE,
    DARK_GRAY,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    SKY,
    THEMES,
    VERMILION,
    require_suffix,
    save,
    screen_look,
)
from ..results.figures.ticks import set_ticks
from ..settings import SettingError
from .tables import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = [DARK_GRAY, LIGHT_GRAY, BLUE, SKY, VERMILION, ORANGE, GREEN]
_TITLE: dict[str, Any] = {"loc": "left", "fontsize": "medium", "fontweight": "bold"}
_NAMES = {"workers": "workers W, at one global batch", "parameters": "parameters P"}


def check_suffix(path: Path | None) -> None:
    """Raise `SettingError` for a figure that could not be written, before anything is timed."""
    require_suffix(path, "plot")
    if path is not None and not path.parent.is_dir():
        raise SettingError("plot", str(path), "names a folder that does not exist")


@screen_look()
def draw_steps(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each case, a bar for each kind of step: times the best plain step."""
    cases = list(dict.fromkeys((row["model"], row["workers"], row["batch"]) for row in rows))
    kinds = list(dict.fromkeys(row["step"] for row in rows))
    figure, panels = _panels(len(cases), 0.32 * len(kinds) + 0.75)
    for panel, case in zip(panels, cases, strict=True):
        shown = [row for row in rows if (row["model"], row["workers"], row["batch"]) == case]
        _bars(panel, shown, kinds)
        panel.set_title("{}, W = {}, b = {}".format(*case), **_TITLE)
    panels[-1].set_xlabel("times the best plain SGD step of the same global batch")
    save(figure, path, THEMES["screen"].dpi, "plot")


@screen_look()
def draw_scaling(rows: Sequence[Row], path: Path) -> None:
    """Draw the milliseconds of a step over workers and over parameters, with least and most."""
    over = list(dict.fromkeys(row["over"] for row in rows))
    figure, panels = _panels(len(over), 2.8)
    for panel, name in zip(panels, over, strict=True):
        shown = [row for row in rows if row["over"] == name]
        x, ms = [row[name] for row in shown], [row["ms"] for row in shown]
        plain = [row["plain_ms"] for row in shown]
        panel.fill_between(
            x,
            [r["ms_min"] for r in shown],
            [r["ms_max"] for r in shown],
            color=BLUE,
            alpha=0.15,
        )
        panel.plot(x, ms, "o-", color=BLUE, label="simsgd --prune 0.999")
        panel.plot(x, plain, "s--", color=DARK_GRAY, label="plain SGD")
        panel.set(xscale="log", xlabel=_NAMES[name], ylabel="ms a step")
        panel.set_xticks(x, [f"{value:,}" for value in x])
        panel.minorticks_off()
        if name == "parameters":
            panel.set_yscale("log")
            set_ticks(panel.yaxis, np.array([*ms, *plain]), in_bytes=False)
        else:
            panel.set_ylim(0, 1.1 * max(row["ms_max"] for row in shown))
        panel.set_title(_title(shown, name), **_TITLE)
        panel.legend()
    save(figure, path, THEMES["screen"].dpi, "plot")


DRAWINGS = {"step": draw_steps, "scaling": draw_scaling}  # by the name of the bench


def _title(rows: Sequence[Row], over: str) -> str:
    if over == "workers":
        return f"{rows[0]['model']}, {rows[0]['workers'] * rows[0]['batch']} samples a step"
    return f"mlp, W = {rows[0]['workers']}, b = {rows[0]['batch']}"


def _panels(count: int, height: float) -> "tuple[Figure, list[Axes]]":
    from ..results.figures.canvas import NotebookFigure  # here: it imports matplotlib

    figure = NotebookFigure(6.4, height * count)
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def _bars(panel: "Axes", rows: Sequence[Row], kinds: Sequence[str]) -> None:
    """Draw a bar for each row, the fastest first."""
    by_time = sorted(rows, key=lambda row: row["ratio"])
    end = by_time[-1]["ratio"]
    for place, row in enumerate(by_time):
        color = _COLORS[kinds.index(row["step"]) % len(_COLORS)]
        panel.barh(place, row["ratio"], 0.62, color=color, zorder=2)
        past = row["ratio"] + 0.015 * end
        panel.text(past, place, f"{row['ratio']:.2f}", va="center", fontsize="small")
    panel.grid(visible=False, axis="y")
    panel.axvline(1, color=BLACK, linewidth=0.8, zorder=3)
    panel.set_yticks(range(len(rows)), [row["step"] for row in by_time])
    panel.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 1.12 * end))
    panel.tick_params(axis="y", length=0)
