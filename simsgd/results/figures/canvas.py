"""A figure that is displayed in a notebook, without pyplot and its global state."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from .style import no_glyph_warnings

TITLE_INCHES = 0.25
_OUTLINES = 42  # fonts that can be embedded and edited, as publishers ask for


class NotebookFigure(Figure):
    """A matplotlib figure with its own canvas."""

    def __init__(self, width: float, height: float, title: str | None = None) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)
        if title:
            self.set_size_inches(width, height + TITLE_INCHES)
            self.suptitle(title, fontsize="medium", fontweight="bold").set_parse_math(False)

    def savefig(self, fname: Any, **settings: Any) -> None:
        """Write the figure, with TrueType fonts, and higher where a title was set since."""
        with (
            mpl.rc_context({"pdf.fonttype": _OUTLINES, "ps.fonttype": _OUTLINES}),
            no_glyph_warnings(),
        ):
            if "bbox_inches" not in settings:
                settings["bbox_inches"] = self._with_titles()
            super().savefig(fname, **settings)

    def _with_titles(self) -> Bbox | None:
        """Return the box of the figure in inches, with the titles of panels that lie above it."""
        titles = [axes.title for axes in self.axes if axes.get_title()]
        top = max((title.get_window_extent().y1 for title in titles), default=0.0) / self.dpi
        width, height = self.get_size_inches()
        return Bbox([[0, 0], [width, top + 0.05]]) if top > height else None

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
