"""The look of figures: two themes, colors for the color-blind, dashes and markers for gray.

Benches and verdicts draw with the same colors, and write their figures by the same `save`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...settings import SettingError, require_kind, unknown
from ..atomic_files import NotWritten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
BLUE, VERMILION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"  # Okabe, Ito, "Color Universal Design", 2008
DARK_GRAY, GRAY, LIGHT_GRAY = "#555555", "#8a8a8a", "#bbbbbb"
COLORS = [BLUE, VERMILION, GREEN, BLACK, PURPLE, ORANGE, SKY]
Dash = Literal["-", "--", "-.", ":", "none"]
DASHES: list[Dash] = ["-", "--", "-.", ":"]
NUM_LOOKS = len(COLORS) * len(DASHES)  # of lines
MARKERS = ["s", "^", "D", "v", "P", "X", "<"]  # all but the round one, which is for the best

RcParams: TypeAlias = dict[Any, Any]  # of matplotlib
_look: RcParams = {
    "axes.axisbelow": True,  # lines of the grid lie below bands
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
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_on_paper: RcParams = {
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "font.size": 8,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}


@dataclass(frozen=True)
class Theme:
    """The size of a figure and of its text."""

    name: str
    panel: tuple[float, float]  # inches, without names beside it
    fixed: bool  # the figure is as wide as its panel, names included
    best: float  # size of the dot of the best, in points
    wrap: int  # characters of a name's line
    dpi: int  # of a .png
    look: RcParams = field(default_factory=dict)


THEMES = {
    theme.name: theme
    for theme in (
        Theme("screen", (5.6, 3.4), fixed=False, best=8, wrap=32, dpi=200, look=_look),
        Theme("paper", (3.35, 2.2), True, best=5, wrap=24, dpi=300, look=_look | _on_paper),
    )
}


@contextlib.contextmanager
def screen_look() -> Iterator[None]:
    """Draw with the look of the theme `screen`: a context, and a decorator of what draws."""
    import matplotlib as mpl

    with mpl.rc_context(THEMES["screen"].look):
        yield


def theme_of(name: str) -> Theme:
    """Return a theme by name. Raises `SettingError` for an unknown one."""
    if name not in THEMES:
        raise unknown("theme", name, THEMES)
    return THEMES[name]


@dataclass(frozen=True)
class Look:
    """The look of a line or of points."""

    color: str
    linestyle: Dash = "-"
    marker: str = ""
    markevery: tuple[float, float] | None = None  # first and next, of the axes' diagonal


def look_of(place: int, marked: bool) -> Look:
    """Return the look of the line at a place, with markers if asked; no two alike among 28.

    Lines of one color differ in both their dash and their marker.
    """
    look = Look(COLORS[place % len(COLORS)], DASHES[place % len(DASHES)])
    if not marked:
        return look
    every = (0.03 * (place % 7), 0.21)  # so that markers do not lie on one another
    return replace(look, marker=marker_of(place).marker, markevery=every)


def marker_of(place: int) -> Look:
    """Return the look of the point at a place, no two alike among 49."""
    return Look(COLORS[place % 7], "none", MARKERS[(place + place // 7) % 7])


def require_suffix(path: Path | str | None, setting: str = "output") -> None:
    """Raise `SettingError` unless a figure can be written to a path, or for None."""
    require_kind(setting, path, str, Path, type(None))
    if path is not None and Path(path).suffix.lower() not in SUFFIXES:
        raise SettingError(setting, str(path), "must end in .png, .svg or .pdf")


def save(figure: "Figure", path: Path, dpi: int, setting: str = "output") -> None:
    """Write a figure in the format of the path's suffix, without the date.

    Raises `SettingError` if it cannot be written.
    """
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        figure.savefig(path, dpi=dpi, metadata=dates.get(path.suffix.lower()))
    except OSError as wrong:
        rule = f"cannot be written ({NotWritten(Path(path), wrong).strerror})"
        raise SettingError(setting, str(path), rule) from wrong
