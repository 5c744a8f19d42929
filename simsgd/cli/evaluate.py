"""`simsgd evaluate`: measure the model in a checkpoint."""

from pathlib import Path

import click

from .group import main
from .options import given
from .paths import PATH
from .terminal import show


@main.command(short_help="Print a checkpoint's loss and errors.")
@click.argument("checkpoint", type=PATH)
@click.option("--data-dir", type=PATH, help="Folder of data sets.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--part",
    type=click.Choice(["val", "test"]),
    default="val",
    show_default=True,
    help="Which part of the data; only texts have a test part.",
)
def evaluate(checkpoint: Path, **options: object) -> None:
    """Print a checkpoint's loss and errors, or perplexity on text.

    CHECKPOINT is a file, or a run's folder, which means its last.pt.
    """
    from ..training.evaluate import evaluate as measure

    show(measure(checkpoint, **given(options)).summary())
