"""The kind `topology`: the neighbors of each worker, and the metric of each worker's own model.

Lines are as wide as the mixing weights; weights that change from step to step are drawn as their
mean. A dot is as dark as its worker's last validation error is large, or another metric bad, where
workers.csv has it.

Letters: W workers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from ...settings import SettingError, require
from ..metric import Metric
from ..run_tables import RunTables
from .graph_layout import Place, Places, places_of
from .legends import settle
from .panels import panels
from .request import Request
from .run_groups import Group
from .style import GRAY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_WIDEST, _THINNEST = 3.6, 0.4  # points of a line
_LARGEST = 21.0  # points across a dot
_SMALLEST_NUMBER = 4.5  # points; smaller ones are left out
_MOST = 1024  # workers
_MARGIN = 1.16  # half the width of a panel; dots lie within 1


@dataclass(frozen=True)
class _Graph:
    """What a panel shows."""

    title: str
    label: str  # topology, workers, degree, spectral gap
    places: Places
    lines: list[tuple[int, int]]  # pairs of neighbors
    weights: list[float]  # of each line
    errors: list[float] | None  # of each worker, or another metric


def draw(request: Request) -> "Figure":
    """Draw a panel for each group of runs; errors are the means over its runs."""
    graphs = [_graph(group) for group in request.groups]
    inches = 3.2 if len(graphs) == 1 else 2.6
    figure, axes = panels(
        [graph.title for graph in graphs], request.theme, inches, request.appearance.title
    )
    errors = [error for graph in graphs for error in graph.errors or () if math.isfinite(error)]
    metric = request.groups[0].runs[0].metric
    colors = _colors(errors, metric)
    thickest = (_WIDEST / 2 if request.theme.fixed else _WIDEST) / max(
        weight for graph in graphs for weight in graph.weights
    )
    for each, graph in zip(axes, graphs, strict=True):
        _lines(each, graph, thickest)
        each.set(xlim=(-_MARGIN, _MARGIN), ylim=(-_MARGIN, _MARGIN), xticks=[], yticks=[])
        each.set_aspect("equal")
        each.spines[:].set_visible(False)
        each.set_xlabel(graph.label, fontsize="small")
    if errors:
        _scale(figure, axes, colors, metric, below=request.theme.fixed)
    settle(figure)
    for each, graph in zip(axes, graphs, strict=True):
        _dots(each, graph, colors)
    return figure


def _graph(group: Group) -> _Graph:
    from ...communication.topology import topology  # here: it imports torch

    run = group.runs[0]
    name = _topology(run)
    workers = run.num_workers
    rule = f"has {workers} workers, too many to draw as a graph: at most {_MOST}"
    require(workers <= _MOST, "run", str(run.folder), rule)
    whole = topology(name, workers, one_way=True)
    rounds = [mixing.weights + mixing.weights.T for mixing in whole.rounds]
    weights = (sum(rounds[1:], rounds[0]) / (2 * len(rounds))).tolist()
    lines = [(a, b) for a in range(workers) for b in range(a) if weights[a][b]]
    first = whole.at(0)
    degree = f"degree {first.degree_text}" + (" a step" if whole.varies else "")
    shown = PurePath(name).name  # of a file
    shown = shown if len(shown) <= 24 else f"...{shown[-21:]}"
    gap = "" if whole.varies else f", gap {first.spectral_gap:.3g}"
    return _Graph(
        group.name,
        f"{shown}, W = {workers}\n{degree}{gap}",
        places_of(name, whole.graph()),
        lines,
        [weights[a][b] for a, b in lines],
        _errors(group, workers),
    )


def _topology(run: RunTables) -> str:
    """Return the spec of a run's topology. Raises `SettingError` if it has none."""
    used = run.used
    topology = used.get("topology")
    if not isinstance(topology, str):
        algorithm = used.get("algorithm", "allreduce")
        rule = f"has no topology: algorithm {algorithm} has no neighbors"
        raise SettingError("run", str(run.folder), rule, "draw a run of dpsgd, choco, ...")
    return topology


def _errors(group: Group, workers: int) -> list[float] | None:
    """Return the last validation metric of each worker, None if a run does not have it."""
    tables = [run.workers for run in group.runs]
    if any(table.empty for table in tables):
        return None
    column = f"val_{group.runs[0].metric.column}"
    lasts = [table.drop_duplicates("worker", keep="last").set_index("worker") for table in tables]
    found = [last[column].reindex(range(workers)) for last in lasts]
    return [float(error) for error in np.mean(found, axis=0)]


def _colors(errors: Sequence[float], metric: Metric) -> "ScalarMappable":
    """Return colors for errors, or for another metric: the darker the worse."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    least, most = min(errors, default=0.0), max(errors, default=1.0)
    apart = 0.5 if least == most else 0.0
    return ScalarMappable(
        Normalize(least - apart, most + apart),
        "viridis" if metric.higher_is_better else "viridis_r",
    )


def _scale(
    figure: "Figure", axes: "list[Axes]", colors: "ScalarMappable", metric: Metric, below: bool
) -> None:
    """Add the scale of the colors of all panels, 0.15 inches beside or below them."""
    width, height = figure.get_size_inches()
    inch = 1 / (height if below else width)
    figure.colorbar(
        colors,
        ax=axes,
        location="bottom" if below else "right",
        label=f"{metric.title} of each worker's own model"
        + (f" ({metric.unit})" * bool(metric.unit)),
        fraction=0.15 * inch,
        pad=0.15 * inch,
        shrink=0.8 if below or len(axes) == 1 else 0.6,
        aspect=30,
    )


def _lines(axes: "Axes", graph: _Graph, points: float) -> None:
    """Draw lines of `points` for each unit of their weights, those out of a torus dashed."""
    from matplotlib.collections import LineCollection

    solid: list[tuple[list[Place], float]] = []
    dashed: list[tuple[list[Place], float]] = []
    for (a, b), weight in zip(graph.lines, graph.weights, strict=True):
        width = max(_THINNEST, points * weight)
        parts = graph.places.line(a, b)
        (solid if len(parts) == 1 else dashed).extend((list(part), width) for part in parts)
    crowd = min(1.0, max(0.6, 60 / len(graph.lines)))  # many lines are drawn fainter
    for some, style in ((solid, "solid"), (dashed, (0, (1.2, 0.8)))):
        if some:
            axes.add_collection(
                LineCollection(
                    [part for part, _ in some],
                    linewidths=[width for _, width in some],
                    linestyles=[style],
                    colors=GRAY,
                    alpha=crowd,
                    zorder=1,
                )
            )


def _dots(axes: "Axes", graph: _Graph, colors: "ScalarMappable") -> None:
    """Draw the dots as large as their distances allow, with numbers that fit into them."""
    dots = graph.places.dots
    points = axes.bbox.width / axes.figure.dpi * 72 / (2 * _MARGIN)  # of a unit of the axes
    across = min(_LARGEST, 0.72 * points * graph.places.least_distance)
    errors = np.array(graph.errors or [math.nan] * len(dots))
    fills = np.where(np.isfinite(errors)[:, None], colors.to_rgba(errors), 1.0)  # [W, 4]
    for worker, (x, y) in enumerate(dots):
        red, green, blue, _ = fills[worker]
        axes.plot(
            x, y, "o", markersize=across, markerfacecolor=(red, green, blue), markeredgewidth=0.7,
            markeredgecolor="#333333", clip_on=False, zorder=2,
        )  # fmt: skip
        size = min(8.0, across * (0.48 if len(dots) <= 100 else 0.38))
        if size >= _SMALLEST_NUMBER:
            light = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                x, y, f"{worker}", fontsize=size, color="white" if light else "black",
                horizontalalignment="center", verticalalignment="center_baseline", zorder=3,
            )  # fmt: skip
