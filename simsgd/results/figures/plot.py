"""Figures from run folders: one function, one kind of figure a file in `figures`.

Up to four runs are named where their lines end, more in a legend. Colors are told apart by the
color-blind, line styles and markers in gray. Bytes are in binary units (1 MiB = 2**20 bytes).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...settings import SettingError, require, unknown
from ..network import networks_of
from ..perplexity import DERIVED
from ..run_folders import find_runs
from ..run_tables import RunTables
from ..step_times import Pricing
from ..tables import EPOCH_COLUMNS, STEP_COLUMNS
from . import curves, layers, pareto, partition, topology
from . import step_time as times
from .request import Request
from .run_groups import grouped
from .style import require_suffix, save, theme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, Callable[[Request], "Figure"]] = {
    "curves": curves.draw,
    "pareto": pareto.draw,
    "layers": layers.draw,
    "time": times.draw,
    "topology": topology.draw,
    "partition": partition.draw,
}
AXES = ("epoch", "step", "bytes", "seconds")


def plot_results(
    runs: "Sequence[RunTables | Path | str]",
    x: str = "epoch",
    y: str | Sequence[str] = ("val_error1",),
    path: Path | str | None = None,
    *,
    kind: str = "curves",
    network: str | Sequence[str] = (),
    pricing: Pricing | None = None,
    smooth: int = 1,
    theme: str = "screen",
    average: bool = True,
) -> "Figure":
    """Draw several runs in one figure, and save it if asked.

    runs: run folders, or folders that hold some. Those equal in all but their seed are drawn as
        one, unless `average` is false.
    x: `epoch`, `step`, `bytes` (sent per worker since the start, on a logarithmic axis), or
        `seconds` (simulated, on a `network`).
    y: columns of epochs.csv, a panel each, val_perplexity and the like if the data are text; with
        x = step, columns of steps.csv go first.
    path: a .png, .svg or .pdf.
    kind: `curves`; `pareto`, y at the end against bytes; `layers`, bytes and error of each layer;
        `time`, what a step takes on each `network`; `topology`, who talks to whom; `partition`,
        samples by worker and class.
    network: as for `simsgd network`, with `pricing` for the rest.
    smooth: points of a running mean.
    theme: `screen`, or `paper`: one column wide, 8 points.

    Raises `SettingError` for an unknown name, a run without such values, another suffix, or an
    option that would have no effect.
    """
    import matplotlib as mpl

    shown = [y] if isinstance(y, str) else list(y)
    specs = [network] if isinstance(network, str) else list(network)
    require_suffix(path)
    _check(kind, x, shown, smooth)
    _check_networks(kind, x, specs, pricing)
    if not runs:
        raise SettingError("run", None, "must name at least one run folder")
    request = Request(
        groups=grouped(find_runs(runs, with_epochs=True), average),
        x=x,
        y=shown,
        networks=networks_of(specs),
        pricing=pricing or Pricing(),
        smooth=smooth,
        theme=theme_of(theme),
    )
    with mpl.rc_context(request.theme.look):
        figure = KINDS[kind](request)
        if path is not None:
            save(figure, Path(path), request.theme)
    return figure


def _check(kind: str, x: str, shown: Sequence[str], smooth: int) -> None:
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if x not in AXES:
        raise unknown("x", x, AXES)
    require(len(shown) > 0, "y", None, "must name at least one column")
    columns = {*EPOCH_COLUMNS, *DERIVED, *(STEP_COLUMNS if x == "step" else ())} - {"epoch", "step"}
    for column in shown:
        if column not in columns:
            raise unknown("y", column, columns)
    require(smooth >= 1, "smooth", smooth, "must be at least 1")
    idle = kind != "curves" and smooth > 1
    require(not idle, "smooth", smooth, f"has no effect on a figure of {kind}", "leave it out")


def _check_networks(kind: str, x: str, networks: Sequence[str], pricing: Pricing | None) -> None:
    if kind != "time" and not (kind == "curves" and x == "seconds"):
        fix = "use it with x seconds, or kind time"
        require(not networks, "network", ", ".join(networks), "has no effect here", fix)
        usual = Pricing()
        for name, value in vars(pricing or usual).items():
            same = value == getattr(usual, name)
            require(same, name, None, "has no effect here", fix)
    elif kind == "time":
        require(len(networks) > 0, "network", None, "must be given", "such as 10gbe")
    else:
        rule = "must be one for simulated seconds"
        require(len(networks) == 1, "network", ", ".join(networks) or None, rule, "such as 10gbe")
