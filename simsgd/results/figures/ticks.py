"""The ticks of a figure's axes, bytes in binary units."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...units import in_units

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def set_ticks(
    axis: "Axis", values: NDArray[np.float64], in_bytes: bool, whole: bool = False
) -> None:
    """Choose the ticks of an axis that shows `values`: bytes, or `whole` numbers, or any."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

    low, high, log = float(values.min()), float(values.max()), axis.get_scale() == "log"
    if log:
        major, minor = _log_ticks(low, high, in_bytes)
        axis.set_major_locator(FixedLocator(major))
        axis.set_minor_locator(FixedLocator(minor))
        axis.set_minor_formatter(NullFormatter())
    elif in_bytes:
        axis.set_major_locator(FixedLocator(_even_ticks(low, high, in_bytes)))
    else:
        axis.set_major_locator(MaxNLocator(6, integer=whole, min_n_ticks=1))
    if in_bytes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: in_units(value)))
    elif log:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def thin_out(axis: "Axis") -> None:
    """Leave out numbers along x that would overlap the one before; the layout must be settled."""
    from matplotlib.ticker import FixedLocator

    low, high = sorted(axis.get_view_interval())
    kept: list[float] = []
    end = float("-inf")
    for tick in axis.get_major_ticks():
        if not low <= tick.get_loc() <= high:
            continue
        box = tick.label1.get_window_extent()
        if box.x0 > end + 6:
            kept.append(tick.get_loc())
            end = box.x1
    axis.set_major_locator(FixedLocator(kept))


def _log_ticks(low: float, high: float, in_bytes: bool) -> tuple[list[float], list[float]]:
    """Return the ticks with a number, three or more between low and high, and those without."""
    if in_bytes:
        decades = [ten * 1024.0**p for p in range(7) for ten in (1, 10, 100)]
    else:
        decades = [10.0**p for p in range(-30, 31)]
    fine = [digit * decade for decade in decades for digit in range(1, 10)]
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7)):
        ticks = [digit * decade for decade in decades for digit in digits]
        if sum(low <= tick <= high for tick in ticks) >= 3:
            return ticks, fine
    return _even_ticks(0.95 * low, 1.05 * high, in_bytes), []


def _even_ticks(low: float, high: float, in_bytes: bool) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    units = (1024.0**p for p in range(8)) if in_bytes else (1.0,)
    unit = max(unit for unit in units if unit <= max(high, 1.0))
    return [unit * float(tick) for tick in MaxNLocator(5).tick_values(low / unit, high / unit)]
