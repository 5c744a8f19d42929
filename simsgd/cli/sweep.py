"""`simsgd sweep`: train with every combination of some values."""

from pathlib import Path

import click

from .completion import completes
from .group import main
from .numbers import WHOLE
from .options import StagedCommand, given, several, swept_settings
from .paths import PATH
from .terminal import echo_table, show


@main.command(cls=StagedCommand, short_help="Train with every combination of some values.")
@swept_settings
@click.option(
    "--seeds", type=WHOLE, metavar="N", help="Runs of each combination: seeds 0 to N - 1."
)
@click.option(
    "--runs-dir",
    type=PATH,
    help="The sweep's folder; default: runs/sweep with what varies.",
)
@click.option(
    "--jobs",
    type=WHOLE,
    metavar="J",
    help="Runs at a time, which share the threads; default: 1, or all with a launcher.",
)
@click.option(
    "--launcher",
    metavar="local|slurm",
    help="Submit runs through submitit; slurm:partition=gpu,timeout_min=60 sets its parameters.",
)
@click.option(
    "--network",
    multiple=True,
    metavar="SPEC",
    shell_complete=completes("network"),
    help="Also print the time of a step of each run on this network, such as 10gbe; repeatable.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def sweep(
    seeds: int | None,
    runs_dir: Path | None,
    jobs: int | None,
    launcher: str | None,
    network: tuple[str, ...],
    quiet: bool,
    **options: object,
) -> int:
    """Train with every combination of some values, and average over seeds.

    Each option takes several values, separated by commas, or may be given several times. A comma
    before name=value belongs to the value: none,qsgd:15,bucket=512 is none, and qsgd:15,bucket=512.
    Runs that are done are not repeated, and runs that stopped are continued. Options that are not
    given have the defaults of train.

    \b
    simsgd sweep --workers 4,16 --compressor none,topk:0.01,terngrad --seeds 3

    Exits with 0 if all runs are done, with 1 if a combination was left out or a run failed.
    """
    from ..results.network import networks_of
    from ..results.network_prices import DISPENSABLE, price_table, prices
    from ..results.pricing import check_networks
    from ..training.sweep.sweep import sweep as run_all

    links, values = networks_of(network), several(given(options))
    for cluster in values.get("cluster", [None]):
        check_networks(links, None if cluster is None else str(cluster))
    swept = run_all(
        runs_dir=runs_dir,
        seeds=seeds,
        jobs=jobs,
        launcher=launcher,
        quiet=quiet,
        **values,
    )
    if not quiet:
        show("")
        echo_table(swept.text_table(), swept.dispensable, "sweep.csv has all")
        show("\n".join([*swept.not_made, "", f"table  {swept.folder / 'sweep.csv'}"]))
    elif swept.not_made:
        click.echo("\n".join(swept.not_made), err=True)
    ended = [run for run in swept.runs if len(run.steps) > 0]
    if links and ended and not quiet:
        show("")
        echo_table(price_table(prices(ended, links)), DISPENSABLE, "simsgd network --json has all")
    return 1 if swept.failures else 0
