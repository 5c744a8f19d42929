"""`simsgd tune-consensus`: find the consensus step size."""

from pathlib import Path

import click

from .group import main
from .paths import PATH
from .terminal import show


@main.command("tune-consensus", short_help="Find the consensus step size, without training.")
@click.option("--workers", default=16, show_default=True, help="Workers that gossip.", metavar="W")
@click.option(
    "--topology",
    default="ring",
    show_default=True,
    help="Graph of the workers.",
    metavar="NAME|FILE",
)
@click.option(
    "--compressor",
    default="topk:0.01",
    show_default=True,
    help="What is sent of a difference.",
    metavar="SPEC",
)
@click.option(
    "--algorithm", default="choco", show_default=True, help="choco or deepsqueeze.", metavar="NAME"
)
@click.option("--elements", default=1000, show_default=True, help="Numbers of each worker.")
@click.option("--rounds", default=300, show_default=True, help="Rounds of gossip.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random numbers.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Figure to write: .png, .svg or .pdf.",
)
def tune_consensus(
    workers: int,
    topology: str,
    compressor: str,
    algorithm: str,
    elements: int,
    rounds: int,
    seed: int,
    output: Path | None,
) -> None:
    """Find the consensus step size by gossip alone, without training.

    Workers start from random numbers; the table has the factor by which their consensus distance
    falls in a round.
    """
    from ..bench.consensus import tune_consensus as tune

    tuning = tune(
        workers, topology, compressor, algorithm, elements, rounds, seed=seed, output=output
    )
    show(tuning.summary())
    if output is not None:
        show(output)
