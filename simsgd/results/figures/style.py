"""The look of figures: two themes, colors for the color-blind, dashes and markers for gray.

Benches and verdicts draw with the same colors, and write their figures by the same `save`.
"""

import contextlib
import os
import sys
import warnings
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


_OTHER_FONTS = (  # with letters that DejaVu Sans lacks, as Chinese ones
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei",
    "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Arial Unicode MS",
)  # fmt: skip


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

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw with this look, and letters that its font lacks by another font that is here.

        Raises `SettingError` where matplotlib refuses the environment.
        """
        try:
            import matplotlib as mpl
        except ValueError as wrong:  # which its import reads, though it is not drawn with
            name, rule = "MPLBACKEND", "is no backend that matplotlib knows"
            raise SettingError(name, os.environ.get(name), rule, "unset it") from wrong
        from matplotlib.font_manager import fontManager

        here = {font.name for font in fontManager.ttflist}
        fonts = [*self.look["font.family"], *(name for name in _OTHER_FONTS if name in here)]
        with mpl.rc_context({**self.look, "font.family": fonts}), no_glyph_warnings():
            yield


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
    with THEMES["screen"].drawing():
        yield


@contextlib.contextmanager
def no_glyph_warnings() -> Iterator[None]:
    """Keep matplotlib from a warning for each letter without a font; `save` tells of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
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
    lacking = "" if path.suffix.lower() == ".svg" else _without_font(figure)
    if lacking:
        told = f"note: no font here has {lacking}, and boxes stand for them; an .svg has them"
        print(told, file=sys.stderr)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        figure.savefig(path, dpi=dpi, metadata=dates.get(path.suffix.lower()))
    except OSError as wrong:
        rule = f"cannot be written ({NotWritten(Path(path), wrong).strerror})"
        raise SettingError(setting, str(path), rule) from wrong


def _without_font(figure: "Figure") -> str:
    """Return the letters in a figure that none of its fonts has."""
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.text import Text

    families = [FontProperties(family=[name]) for name in mpl.rcParams["font.family"]]
    fonts = [get_font(findfont(family)) for family in families]
    texts = "".join(text.get_text() for text in figure.findobj(Text))
    letters = sorted({letter for letter in texts if letter.isprintable() and letter != " "})
    return "".join(c for c in letters if not any(font.get_char_index(ord(c)) for font in fonts))
