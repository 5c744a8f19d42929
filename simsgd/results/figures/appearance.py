"""The title, limits, scales, legend and bands of a figure, where a user sets them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...settings import SettingError, require, require_kind, unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGENDS = ("inside", "outside", "none")
BANDS = ("range", "std", "sem", "none")
Limits = tuple[float, float]
_ON_AXES = ("curves", "pareto")  # kinds whose axes can be set
_LONGEST = 300  # characters of a text in a figure
_FAR = 1e300  # beyond which matplotlib's arithmetic overflows


@dataclass(frozen=True)
class Appearance:
    """How a figure is labeled and scaled; what is None is chosen by the figure."""

    title: str | None = None
    xlim: Limits | None = None
    ylim: Limits | None = None
    logx: bool | None = None
    logy: bool | None = None
    legend: str | None = None  # of `LEGENDS`
    band: str = "range"  # of `BANDS`: around the mean over seeds

    def __post_init__(self) -> None:
        for name in ("title", "legend", "band"):
            require_kind(name, getattr(self, name), str, type(None))
        require_text("title", self.title or "")
        for name in ("logx", "logy"):
            require_kind(name, getattr(self, name), bool, type(None))
        if self.legend not in (None, *LEGENDS):
            raise unknown("legend", str(self.legend), LEGENDS)
        if self.band not in BANDS:
            raise unknown("band", self.band, BANDS)
        for name, limits in (("xlim", self.xlim), ("ylim", self.ylim)):
            if limits is None:
                continue
            rule = "must be a lower and an upper limit"
            pair = isinstance(limits, Sequence) and len(limits) == 2
            require(pair and all(isinstance(v, Real) for v in limits), name, str(limits), rule)
            low, high = limits
            require(-math.inf < low < high < math.inf, name, f"{low},{high}", rule)
            rule = f"must lie within -{_FAR:g} and {_FAR:g}"
            require(-_FAR <= low < high <= _FAR, name, f"{low},{high}", rule)

    def check(self, kind: str) -> None:
        """Raise `SettingError` for a setting that has no effect on a kind of figure."""
        for name in ("xlim", "ylim", "logx", "logy", "legend"):
            if getattr(self, name) is not None and kind not in _ON_AXES:
                _refuse(name, kind)
        if self.band != "range" and kind != "curves":
            _refuse("band", kind)

    def scale_x(self, axes: "Axes", values: NDArray[np.float64], log: bool) -> NDArray[np.float64]:
        """Set the limits and the scale along x, `log` by default; return the values to tick."""
        log = log if self.logx is None else self.logx
        _check_positive("logx", self.xlim, values, log)
        axes.set_xscale("log" if log else "linear")
        if self.xlim is None:
            return values
        axes.set_xlim(*self.xlim)
        return np.array(self.xlim)

    def scale_y(self, axes: "Axes", values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Set the limits and the scale along y; return the values to tick.

        By default the scale of positive values that span more than a factor of twenty is
        logarithmic.
        """
        log = bool(values.min() > 0 and values.max() > 20 * values.min())
        log = log if self.logy is None else self.logy
        _check_positive("logy", self.ylim, values, log)
        axes.set_yscale("log" if log else "linear")
        if self.ylim is None:
            return values
        axes.set_ylim(*self.ylim)
        return np.array(self.ylim)


def require_text(name: str, text: str) -> None:
    """Raise `SettingError` for bytes that are no characters, and for more than a figure holds."""
    require(len(text) <= _LONGEST, name, text, f"may have {_LONGEST} characters")
    is_text = text.encode("utf-8", "replace").decode("utf-8") == text
    require(is_text, name, text, "holds bytes that are no text", "write it in UTF-8")


def _check_positive(
    name: str, limits: Limits | None, values: NDArray[np.float64], log: bool
) -> None:
    if log and (values.min() if limits is None else limits[0]) <= 0:
        fix = "set limits above 0" if values.max() > 0 else "leave it out: none of them is"
        raise SettingError(name, True, "needs values above 0", fix)


def _refuse(name: str, kind: str) -> None:
    raise SettingError(name, None, f"has no effect on a figure of {kind}", "leave it out")
