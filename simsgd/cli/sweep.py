"""Commands that make many runs, and that tell what came of them."""

from pathlib import Path
from typing import Any

import click

from .group import main
from .options import StagedCommand, given, several, swept_settings


@main.command(cls=StagedCommand, short_help="Train with every combination of some values.")
@swept_settings
@click.option("--seeds", type=int, metavar="N", help="Runs of each combination: seeds 0 to N - 1.")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    help="The sweep's folder; default: runs/sweep with what varies.",
)
@click.option(
    "--jobs",
    type=int,
    metavar="J",
    help="Runs at a time, which share the threads; default: 1, with a launcher all.",
)
@click.option(
    "--launcher",
    metavar="local|slurm",
    help="Submit runs through submitit; slurm:partition=gpu,timeout_min=60 sets what it takes.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="SPEC",
    help="Also tell what a step of each run would take on it, such as 10gbe; repeatable.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def sweep(
    seeds: int | None,
    runs_dir: Path | None,
    jobs: int | None,
    launcher: str | None,
    networks: tuple[str, ...],
    quiet: bool,
    **options: Any,
) -> int:
    """Train with every combination of some values, and average over seeds.

    Each option takes several values, with commas between, or is given several times. A comma
    before name=value stays in the value: none,qsgd:15,bucket=512 is none, and qsgd:15,bucket=512.
    What is done already is not done again, and what stopped goes on. Options that are not given
    have the defaults of train.

    \b
    simsgd sweep --workers 4,16 --compressor none,topk:0.01,terngrad --seeds 3

    Exits with 0 if all runs are done, with 1 if a combination was left out or a run failed.
    """
    from ..results.network import networks_of
    from ..results.network_prices import price_table, prices
    from ..training.sweep.sweep import sweep as make

    links = networks_of(networks)  # a wrong one is told before the first run
    said = several(given(options))
    left = make(runs_dir=runs_dir, seeds=seeds, jobs=jobs, launcher=launcher, quiet=quiet, **said)
    if not quiet:
        click.echo(f"\n{left.summary()}\n\ntable  {left.folder / 'sweep.csv'}")
    ended = [run for run in left.runs if len(run.steps) > 0]
    if links and ended and not quiet:
        click.echo(f"\n{price_table(prices(ended, links))}")
    return 1 if left.failures else 0
