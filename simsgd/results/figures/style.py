"""How figures look: two themes, colors for the color-blind, dashes and markers for gray."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...settings import SettingError, require, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
GRAY = "#8a8a8a"
COLORS = ["#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["s", "^", "D", "v", "P", "X", "<"]  # all but the round one, which is for the best

_look: dict[Any, Any] = {
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
    "pdf.fonttype": 42,  # fonts as outlines that a printer can embed
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_on_paper: dict[Any, Any] = {
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
    """The size of a figure and of what is written in it."""

    name: str
    panel: tuple[float, float]  # inches, without names beside it
    fixed: bool  # the figure is as wide as its panel, names included
    best: float  # size of the dot of the best, in points
    wrap: int  # characters of a name's line
    dpi: int  # of a .png
    look: dict[Any, Any] = field(default_factory=dict)  # of matplotlib


THEMES = {
    theme.name: theme
    for theme in (
        Theme("screen", (5.6, 3.4), fixed=False, best=8, wrap=32, dpi=200, look=_look),
        Theme("paper", (3.35, 2.2), True, best=5, wrap=24, dpi=300, look=_look | _on_paper),
    )
}


def theme_of(name: str) -> Theme:
    """Return a theme by name. Raises `SettingError` for an unknown one."""
    if name not in THEMES:
        raise unknown("theme", name, THEMES)
    return THEMES[name]


def look_of(place: int, marked: bool) -> dict[str, Any]:
    """Return the color and the dashes of the line at a place, and markers if asked."""
    look: dict[str, Any] = {
        "color": COLORS[place % len(COLORS)],
        "linestyle": DASHES[place % len(DASHES)],
    }
    if marked:
        look["marker"] = MARKERS[place % len(MARKERS)]
        look["markevery"] = (0.03 * (place % 7), 0.21)  # of the axes' diagonal; not on one another
    return look


def marker_of(place: int) -> dict[str, Any]:
    """Return the color and the marker of the point at a place, no two alike among 49."""
    return {
        "color": COLORS[place % 7],
        "marker": MARKERS[(place + place // 7) % 7],
        "linestyle": "none",
    }


def require_suffix(path: Path | str | None) -> None:
    """Raise `SettingError` unless a figure can be written to a path."""
    known = path is None or Path(path).suffix.lower() in SUFFIXES
    require(known, "output", str(path), "must end in .png, .svg or .pdf")


def save(figure: "Figure", path: Path, theme: Theme) -> None:
    """Write a figure in the format of the path's suffix, without the date.

    Raises `SettingError` if it cannot be written.
    """
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    metadata: dict[str, Any] | None = dated.get(path.suffix.lower())
    try:
        figure.savefig(path, dpi=theme.dpi, metadata=metadata)
    except OSError as wrong:
        raise SettingError("output", str(path), f"cannot be written ({wrong.strerror})") from wrong
