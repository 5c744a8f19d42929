"""Commands that train, and that look at what was trained."""

from pathlib import Path
from typing import Any

import click

from .group import main
from .options import StagedCommand, given, settings

_OF_VERIFY = {"workers": 4, "dtype": "float64"}  # its defaults, where they differ


@main.command(cls=StagedCommand, short_help="Train with W simulated workers.")
@settings
@click.option("--dry-run", is_flag=True, help="Print the memory that it would take, and end.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="SPEC",
    help="Also tell what a step would take on it, such as 10gbe; repeatable.",
)
def train(dry_run: bool, networks: tuple[str, ...], **options: Any) -> None:
    """Train with W simulated workers and record the bytes of every step.

    Each option has a default, so that `simsgd train` alone is a run. They stand here in the order
    of a step: what is trained, by whom, what is sent, what is kept, how it is applied.

    \b
    simsgd train --workers 16 --prune 0.999
    simsgd train --workers 16 --compressor topk:0.01+terngrad --memory residual
    simsgd train --resume runs/NAME
    """
    if dry_run:
        from ..training.memory_use.estimate import footprint

        click.echo(footprint(**given(options)).told())
        return
    from ..communication.transport import is_rank_zero
    from ..results.network import networks_of
    from ..training.trainer import train as run_training

    networks_of(networks)  # a wrong one is told before the first step
    run = run_training(**given(options))
    if not options["quiet"] and is_rank_zero():
        click.echo(run.summary(networks))


@main.command(
    cls=StagedCommand,
    context_settings={"default_map": _OF_VERIFY},
    short_help="Hold a simulation to real processes.",
)
@settings
@click.option("--steps", default=50, show_default=True, help="Steps to compare.")
def verify(quiet: bool, **options: Any) -> int:
    """Hold a simulation to real processes: parameters, losses, and bytes on the real sends.

    Exits with 0 if parameters agree and bytes are equal, else with 1.
    """
    from ..verify.verify import verify as run_both

    said = given(options)
    verdict = run_both(say=(lambda text: None) if quiet else click.echo, **said)
    if not quiet:
        click.echo(verdict.summary())
    return 0 if verdict.holds else 1


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of data sets.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
@click.option("--part", type=click.Choice(["val", "test"]), default="val", help="Of a text.")
def evaluate(checkpoint: Path, part: str, **options: Any) -> None:
    """Print a checkpoint's loss and errors, or perplexity on text.

    CHECKPOINT is a file, or a run's folder, which means its last.pt.
    """
    from ..training.evaluation import evaluate_checkpoint

    facts = evaluate_checkpoint(checkpoint, given(options), part)
    width = max(len(what) for what, _ in facts)
    for what, value in facts:
        click.echo(f"{what:<{width}}  {value}")
