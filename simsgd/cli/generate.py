"""`simsgd generate`: continue a text with a language model."""

from pathlib import Path

import click

from .group import main
from .options import given
from .paths import PATH
from .terminal import show


@main.command(short_help="Continue a text with a language model.")
@click.argument("checkpoint", type=PATH)
@click.option("--prompt", default="\n", help="The text to continue; default: a new line.")
@click.option("--length", type=int, default=200, show_default=True, help="Tokens to write.")
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    help="Below 1 likely tokens become more likely; 0 takes the most likely one.",
)
@click.option("--top-k", type=int, metavar="K", help="Draw from the K most likely tokens alone.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draws.")
@click.option("--data-dir", type=PATH, help="Folder of data sets.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
def generate(checkpoint: Path, **options: object) -> None:
    """Print a prompt, and how the model of a run on text continues it.

    CHECKPOINT is a file, or a run's folder, which means its last.pt.
    """
    from ..training.generate import generate as write

    show(write(checkpoint, **given(options)))
