"""Commands that draw and tell what runs left."""

import sys
from pathlib import Path

import click

from .group import main


@main.command("plot-results")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-x", default="epoch", show_default=True, help="epoch, step or bytes.")
@click.option(
    "-y",
    multiple=True,
    default=["val_error1"],
    show_default=True,
    help="Column of epochs.csv (or val_perplexity, of text), or of steps.csv where x is step; one "
    "panel for each.",
)
@click.option(
    "-o",
    "--output",
    default=Path("results.png"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Figure to write: .png, .svg or .pdf.",
)
def plot_results(runs: tuple[Path, ...], x: str, y: tuple[str, ...], output: Path) -> None:
    """Draw the curves of several runs in one figure."""
    from ..plots import plot_results as draw

    draw(runs, x=x, y=y, path=output)
    click.echo(output)


def plot_results_main() -> None:
    """Run `plot-results` as a program of its own."""
    main(["plot-results", *sys.argv[1:]], prog_name="simsgd")
