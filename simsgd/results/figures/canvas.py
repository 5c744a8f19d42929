"""A figure that is displayed in a notebook, without pyplot and its global state."""

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

TITLE_INCHES = 0.25


class NotebookFigure(Figure):
    """A matplotlib figure with its own canvas."""

    def __init__(self, width: float, height: float, title: str | None = None) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)
        if title:
            self.set_size_inches(width, height + TITLE_INCHES)
            self.suptitle(title, fontsize="medium", fontweight="bold").set_parse_math(False)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
