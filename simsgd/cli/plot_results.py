"""`simsgd plot-results`: draw several runs in one figure."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from ..settings import SettingError, require
from ..units import is_plain_number, num_bytes
from .completion import complete_runs, completes
from .group import main
from .paths import PATH
from .pricing import priced
from .terminal import show

if TYPE_CHECKING:
    from ..results.figures.plot import PlotSettings


def _labels(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of RUN=TEXT by run."""
    pairs = [text.partition("=") for text in texts]
    for run, equals, _text in pairs:
        if not equals:
            raise SettingError("labels", run, "must be RUN=TEXT")
        require([name for name, *_ in pairs].count(run) == 1, "labels", run, "names a run twice")
    return {run: text for run, _equals, text in pairs}


def _limits(
    _: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """Return the numbers of LOW,HIGH, which may be sizes."""
    if text is None:
        return None
    low, _comma, high = text.partition(",")
    try:
        return _number(low), _number(high)
    except ValueError as wrong:
        rule = "must be LOW,HIGH, two numbers or sizes such as 1KB,10MB"
        raise SettingError(str(parameter.name), text, rule) from wrong


def _number(text: str) -> float:
    size = num_bytes(text)
    if size is None and not is_plain_number(text):
        raise ValueError(text)
    return float(text) if size is None else size


@main.command("plot-results")
@click.argument("runs", nargs=-1, required=True, type=PATH, shell_complete=complete_runs)
@click.option(
    "--kind",
    default="curves",
    show_default=True,
    shell_complete=completes("kind"),
    help="curves; pareto: -y at the end against bytes or seconds; layers: bytes and error of each; "
    "time: the time of a step on each --network; timeline: what device and link do in a step; "
    "topology: the workers' graph, and their errors; partition: samples by worker and class.",
)
@click.option(
    "-x",
    help="epoch (default), step, samples, tokens (of text), bytes, or simulated seconds; with "
    "pareto: bytes (default), seconds, or budget, the value of -y after --at-bytes.",
)
@click.option(
    "--at-bytes",
    metavar="SIZE",
    help="With pareto: compare runs when each worker had sent this many bytes, such as 10MB.",
)
@click.option(
    "-y",
    multiple=True,
    help="Column of epochs.csv, or val_accuracy, val_perplexity and the like; where x is step, "
    "samples or tokens also one of steps.csv. Repeatable, a panel each. Default: the runs' "
    "validation metric.",
)
@click.option(
    "-o",
    "--output",
    default=Path("results.png"),
    show_default=True,
    type=PATH,
    help="Figure to write: .png, .svg or .pdf.",
)
@click.option(
    "--smooth", default=1, show_default=True, metavar="N", help="Draw a running mean of N points."
)
@click.option(
    "--theme",
    default="screen",
    show_default=True,
    help="screen, or paper: as wide as one of two columns.",
)
@click.option("--each", is_flag=True, help="Draw runs that differ only in their seed one by one.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_labels,
    metavar="RUN=TEXT",
    help="Text for a run, by its name in the figure or its folder's; repeatable.",
)
@click.option(
    "--order", multiple=True, metavar="RUN", help="Draw this run first; repeatable, in this order."
)
@click.option("--title", metavar="TEXT", help="Text above the figure.")
@click.option(
    "--xlim", callback=_limits, metavar="LOW,HIGH", help="Limits along x, such as 1KB,10MB."
)
@click.option("--ylim", callback=_limits, metavar="LOW,HIGH", help="Limits along y.")
@click.option("--logx/--no-logx", default=None, help="Whether x is logarithmic.")
@click.option("--logy/--no-logy", default=None, help="Whether y is logarithmic.")
@click.option(
    "--legend", metavar="PLACE", help="inside, outside or none; default: names beside few lines."
)
@click.option(
    "--band",
    default="range",
    show_default=True,
    help="Around the mean over seeds: range, std, sem (standard error) or none.",
)
@priced()
def plot_results(
    runs: tuple[Path, ...],
    x: str | None,
    y: tuple[str, ...],
    output: Path,
    **options: "Unpack[PlotSettings]",
) -> None:
    """Draw several runs, or folders of runs, in one figure.

    Runs that differ in nothing but their seed are drawn as one: their mean, in a band from the
    least to the most.
    """
    from ..results.figures.plot import plot_results as draw

    draw(runs, x, y or None, output, **options)
    show(output)


def plot_results_main() -> None:
    """Run `plot-results` as a program."""
    main(["plot-results", *sys.argv[1:]], prog_name="simsgd")
