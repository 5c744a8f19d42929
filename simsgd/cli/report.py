"""`simsgd report`: write one self-contained page about runs."""

from pathlib import Path

import click

from .completion import complete_runs
from .group import main
from .paths import PATH
from .terminal import show


@main.command(short_help="Write one self-contained page about runs.")
@click.argument("runs", nargs=-1, required=True, type=PATH, shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    default=Path("report.html"),
    show_default=True,
    type=PATH,
    help="Page to write.",
)
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Write one self-contained page about runs: settings, figures, tables.

    RUNS are run folders, or folders that hold some, such as a sweep's.
    """
    from ..results.report import report as write

    show(write(runs, output))
