"""The figures of `simsgd plot-results`: one function, and a file beside it for each kind of figure.

Up to four runs are named where their lines end, more in a legend. Colors are distinct for the
color-blind, line styles and markers in gray. Bytes are in binary units (1 MiB = 2**20 bytes).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ...given_object import plain_arguments
from ...settings import SettingError, require, require_kind, size_in_bytes, unknown
from ..metric import DERIVED
from ..network import networks_of
from ..outcome import metrics_of
from ..pricing import Pricing
from ..run_folders import RunPaths, find_runs
from ..run_tables import RunTables
from ..tables import ALL_STEP_COLUMNS, EPOCH_COLUMNS
from . import curves, layers, pareto, partition, step_time, timeline, topology
from .appearance import Appearance, Limits, require_text
from .pareto_points import PARETO_AXES
from .request import Request
from .run_groups import grouped, labeled, ordered
from .series import OF_STEPS
from .style import require_suffix, save, theme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, Callable[[Request], "Figure"]] = {
    "curves": curves.draw,
    "pareto": pareto.draw,
    "layers": layers.draw,
    "time": step_time.draw,
    "timeline": timeline.draw,
    "topology": topology.draw,
    "partition": partition.draw,
}
_USED_BY = {  # settings that not all kinds have a use for: the kinds that have
    "y": ("curves", "pareto"),
    "smooth": ("curves",),
    "each": tuple(kind for kind in KINDS if kind != "partition"),  # which draws runs one by one
}
AXES = ("epoch", "step", "samples", "tokens", "bytes", "seconds", "budget")


class PlotSettings(TypedDict, total=False):
    """The settings of `plot_results` that `Run.plot` and `Sweep.plot` pass on."""

    kind: str
    network: str | Sequence[str]
    at_bytes: str | int | None
    smooth: int
    theme: str
    each: bool
    labels: Mapping[str, str]
    order: Sequence[str]
    title: str | None
    xlim: Limits | None
    ylim: Limits | None
    logx: bool | None
    logy: bool | None
    legend: str | None
    band: str
    compute_ms: float | str | None
    compress_ms: float | None
    all_reduce: str
    fusion: bool
    overlap: str | bool


@plain_arguments
def plot_results(
    runs: RunPaths,
    x: str | None = None,
    y: str | Sequence[str] | None = None,
    output: Path | str | None = None,
    *,
    kind: str = "curves",
    network: str | Sequence[str] = (),
    at_bytes: str | int | None = None,
    smooth: int = 1,
    theme: str = "screen",
    each: bool = False,
    labels: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
    title: str | None = None,
    xlim: Limits | None = None,
    ylim: Limits | None = None,
    logx: bool | None = None,
    logy: bool | None = None,
    legend: str | None = None,
    band: str = "range",
    compute_ms: float | str | None = None,
    compress_ms: float | None = None,
    all_reduce: str = "ring",
    fusion: bool = True,
    overlap: str | bool = "none",
) -> "Figure":
    """Draw several runs in one figure, a matplotlib Figure, and save it if asked.

    Args:
        runs: run folders, or folders that hold some at any depth. Those equal in all but their seed
            are drawn as one, unless `each` is true.
        x: `epoch`, `step`, `samples` or, of text, `tokens` (that all workers together trained on),
            `bytes` (sent per worker since the start, on a logarithmic axis), or `seconds`
            (simulated, on a `network`); by default the epoch. Of pareto `bytes`, the default,
            `seconds`, or `budget`, the value of y when `at_bytes` were sent.
        y: columns of epochs.csv, a panel each, and what follows from them, such as val_accuracy or
            val_perplexity; with x step, samples or tokens, columns of steps.csv go first. By
            default the validation metric of the runs: val_error1, val_perplexity of text, or what
            their `metric` names.
        output: a .png, .svg or .pdf to write.
        kind: `curves`; `pareto`, y at the end against bytes or seconds; `layers`, bytes and
            error of each layer; `time`, what a step takes on each `network`; `timeline`, what
            device and link do in a step of each; `topology`, the
            neighbors of each worker; `partition`, samples by worker and class.
        network: a network, or several, as for `simsgd.network`; so are `compute_ms` and what
            follows it.
        at_bytes: such as 10MB, of pareto: runs are taken as far as the last evaluation before which
            each worker had sent at most so many bytes.
        smooth: points of a running mean.
        theme: `screen`, or `paper`: one column wide, 8 points.
        labels: texts for runs, by the names that the figure has for them or by those of the runs.
        order: names of those that come first, in this order.
        title: text above the figure.
        xlim: limits of the x axis, of curves and pareto; `ylim` are those of the y axis.
        logx: whether the x axis is logarithmic, of curves and pareto; `logy`, the y axis.
        legend: `inside`, `outside` or `none`, of curves and pareto; None: names beside lines or
            points where there is room.
        band: of curves over several seeds: `range`, from least to most; `std`, the standard
            deviation of the sample; `sem`, that of the mean; or `none`.

    Raises `SettingError` for an unknown name, a run without such values, another suffix, or an
    option that would have no effect.
    """

    pricing = Pricing(compute_ms, compress_ms, all_reduce, fusion, overlap)
    if not isinstance(y, Sequence):
        require_kind("y", y, str, type(None))
    require_kind("network", network, str, Sequence)
    require_kind("order", order, str, Sequence)
    order = [order] if isinstance(order, str) else order
    require_kind("labels", labels, Mapping, type(None))
    require_kind("theme", theme, str)
    for label in (labels or {}).values():
        require_kind("labels", label, str)
        require_text("labels", label)
        require(label.strip() != "", "labels", label, "must not be empty")
    given = [y] if isinstance(y, str) else y
    specs = [network] if isinstance(network, str) else list(network)
    require_suffix(output)
    x = _check(kind, x, given, smooth)
    _refuse_unused(kind, y=given, smooth=smooth if smooth > 1 else None, each=each or None)
    _check_networks(kind, x, specs, pricing)
    size = _size(kind, x, at_bytes)
    appearance = Appearance(title, xlim, ylim, logx, logy, legend, band)
    appearance.check(kind)
    found = find_runs(runs, with_epochs=True)
    columns = _metric_columns(found) if given is None else _known(x, given, found)
    if kind in _USED_BY["y"]:
        _note_kinds_of_data(found)
    groups = grouped(found, average=not each)
    request = Request(
        groups=labeled(ordered(groups, list(order)), labels or {}),
        x=x,
        y=columns,
        networks=networks_of(specs),
        pricing=pricing,
        smooth=smooth,
        theme=theme_of(theme),
        appearance=appearance,
        size=size,
        ordered=len(order) > 0,
    )
    with request.theme.drawing():
        figure = KINDS[kind](request)
        if output is not None:
            save(figure, Path(output), request.theme.dpi)
    return figure


def _check(kind: str, x: str | None, y: Sequence[str] | None, smooth: int) -> str:
    """Return what is along x, which each kind has a default of its own for."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if x is not None and x not in AXES:
        raise unknown("x", x, AXES)
    require(y is None or len(y) > 0, "y", None, "must name at least one column")
    require(smooth >= 1, "smooth", smooth, "must be at least 1")
    if kind == "pareto":
        rule = f"must be one of {', '.join(PARETO_AXES)} on a figure of pareto"
        require(x is None or x in PARETO_AXES, "x", x, rule)
        return x or "bytes"
    rule = f"has no effect on a figure of {kind}"
    require(kind == "curves" or x is None, "x", x, rule, "leave it out")
    require(x != "budget", "x", x, "is of figures of kind pareto", "use bytes, or kind pareto")
    return x or "epoch"


def _size(kind: str, x: str, at_bytes: str | int | None) -> int | None:
    """Return the bytes of a worker as far as which runs are taken."""
    if at_bytes is None:
        rule = "must be given with budget along x"
        require(x != "budget", "at_bytes", None, rule, "such as 10MB")
        return None
    rule = f"has no effect on a figure of {kind}"
    require(kind == "pareto", "at_bytes", at_bytes, rule, "use kind pareto")
    return size_in_bytes("at_bytes", at_bytes)


def _refuse_unused(kind: str, **given: object) -> None:
    """Raise `SettingError` for a setting, not None, that a kind of figure has no use for."""
    for name, value in given.items():
        if value is not None and kind not in _USED_BY[name]:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise SettingError(name, shown, f"has no effect on a figure of {kind}", "leave it out")


def _metric_columns(runs: Sequence[RunTables]) -> list[str]:
    """Return the column of the runs' metric. Raises `SettingError` if they have several."""
    columns = [f"val_{metric.column}" for metric in metrics_of(runs)]
    rule = f"must be given for runs with several metrics: {', '.join(columns)}"
    require(len(columns) == 1, "y", None, rule, "such as val_loss, which all have")
    return columns


def _note_kinds_of_data(runs: Sequence[RunTables]) -> None:
    """Print on stderr that the runs of a figure are of images and texts, or of several tokens."""
    kinds = {str(run.config.get("tokens") or "samples"): run.name for run in reversed(runs)}
    if len(kinds) > 1:
        each = " and ".join(f"{kind} ({name})" for kind, name in sorted(kinds.items()))
        print(f"note: losses and errors per {each} are in one panel", file=sys.stderr)


def _known(x: str, y: Sequence[str], runs: Sequence[RunTables]) -> list[str]:
    """Return the columns to draw. Raises `SettingError` for one that no run has."""
    own = [name for metric in metrics_of(runs) for name in metric.own_columns]
    of_steps = ALL_STEP_COLUMNS if x in OF_STEPS else ()
    known = {*EPOCH_COLUMNS, *DERIVED, *own, *of_steps} - {"epoch", "step", "samples"}
    for column in y:
        if column not in known:
            raise unknown("y", column, known)
    return list(y)


def _check_networks(kind: str, x: str, networks: Sequence[str], pricing: Pricing) -> None:
    listed = ", ".join(networks)
    if kind in ("time", "timeline"):
        if not networks:
            raise SettingError("network", None, "must be given", "such as 10gbe")
    elif x == "seconds":
        if len(networks) != 1:
            rule = "must be one for simulated seconds"
            raise SettingError("network", listed or None, rule, "such as 10gbe")
    else:
        fix = "use it with x seconds, or kind time or timeline"
        if networks:
            raise SettingError("network", listed, "has no effect here", fix)
        usual = asdict(Pricing())
        for name, value in asdict(pricing).items():
            if value != usual[name]:
                raise SettingError(name, None, "has no effect here", fix)
