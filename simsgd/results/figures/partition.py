"""The kind `partition`: samples of each class that each worker has, as the areas of dots.

Letters: W workers, C classes.
"""

from typing import TYPE_CHECKING, TypeAlias

from ...settings import SettingError
from ..run_tables import RunTables
from .legends import settle
from .panels import panels
from .request import Request
from .style import BLUE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Panel: TypeAlias = "tuple[str, RunTables, pd.DataFrame]"  # title, run, samples
_FULL = 0.96  # of a cell's shorter side, across the largest dot


def draw(request: Request) -> "Figure":
    """Draw a panel for each partition, as those of different seeds have no mean.

    Runs with the same one share a panel.
    """
    found = _distinct(
        [
            (group.name if len(group.runs) == 1 else run.name, run, _table(run))
            for group in request.groups
            for run in group.runs
        ]
    )
    inches = 4.6 if len(found) == 1 else 3.0
    figure, axes = panels(
        [name for name, _, _ in found], request.theme, inches, request.appearance.title
    )
    for each, (_, run, table) in zip(axes, found, strict=True):
        workers, classes = (int(table[what].max()) + 1 for what in ("worker", "class"))
        each.set(xlim=(-0.6, workers - 0.4), ylim=(classes - 0.4, -0.6), ylabel="class")
        most = int(table["samples"].max())
        how = f"{run.config.get('partition')}\nlargest dot: {most:,} samples"
        each.set_xlabel(f"worker\n{how}", fontsize="small")
        _whole_numbers(each)
        each.spines[["right", "top"]].set_visible(True)
    settle(figure)
    for each, (_, _, table) in zip(axes, found, strict=True):
        _dots(each, table)
    return figure


def _distinct(panels: "list[_Panel]") -> "list[_Panel]":
    """Return panels with those of equal partitions as one, which has the names of all."""
    distinct: list[_Panel] = []
    for name, run, table in panels:
        place = next((i for i, own in enumerate(distinct) if own[2].equals(table)), None)
        if place is None:
            distinct.append((name, run, table))
        else:
            distinct[place] = (f"{distinct[place][0]}, {name}", *distinct[place][1:])
    return distinct


def _table(run: RunTables) -> "pd.DataFrame":
    """Return a run's samples by worker and class. Raises `SettingError` if it has none."""
    table = run.partition
    rule = "has no partition.csv: its workers may take any sample"
    fix = "train it with --partition sorted, dirichlet:0.3, ..."
    if table.empty:
        raise SettingError("run", str(run.folder), rule, fix)
    return table


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1, prune=None))
    axes.tick_params(length=2)


def _dots(axes: "Axes", table: "pd.DataFrame") -> None:
    """Draw dots whose areas are samples; the largest of the panel fills its cell."""
    cells = [
        side / axes.get_figure().dpi * 72 / abs(high - low)  # type: ignore[union-attr]
        for side, (low, high) in (
            (axes.bbox.width, axes.get_xlim()),
            (axes.bbox.height, axes.get_ylim()),
        )
    ]
    across = _FULL * min(cells)  # points
    some = table[table["samples"] > 0]
    areas = across**2 * some["samples"] / some["samples"].max()
    axes.scatter(some["worker"], some["class"], s=areas, color=BLUE, linewidths=0, zorder=2)
