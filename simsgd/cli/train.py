"""`simsgd train`: train with W simulated workers."""

import click

from .completion import completes
from .group import main
from .options import ShortHelpCommand, given, settings
from .terminal import show


@main.command(cls=ShortHelpCommand, short_help="Train with W simulated workers.")
@settings
@click.option(
    "--dry-run", is_flag=True, help="Print the memory and disk that a run would take, and exit."
)
@click.option(
    "--network",
    multiple=True,
    metavar="SPEC",
    shell_complete=completes("network"),
    help="Also print the time of a step on this network, such as 10gbe; repeatable.",
)
def train(dry_run: bool, network: tuple[str, ...], **options: object) -> None:
    """Train with W simulated workers and record the bytes of every step.

    Each option has a default, so that `simsgd train` alone is a run. The options are listed in the
    order of a step: model, workers, compression, memory, algorithm, optimizer.

    \b
    simsgd train --workers 16 --prune 0.999
    simsgd train --workers 16 --compressor topk:0.01+terngrad --memory residual
    simsgd train --resume runs/NAME
    """
    if network:
        from ..results.network import networks_of
        from ..results.pricing import check_networks
        from ..training.run_config import run_config

        check_networks(networks_of(network), run_config(given(options)).cluster)
    if dry_run:
        from ..training.memory_use.estimate import footprint

        show(footprint(**given(options)).summary())
        return
    from ..communication.transport import is_rank_zero
    from ..training.trainer import train as run_training

    run = run_training(**given(options))
    if not options["quiet"] and is_rank_zero():
        show(run.summary(network))
