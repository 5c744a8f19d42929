"""`simsgd network`: price the steps of runs on networks."""

import json
from pathlib import Path

import click

from .group import main
from .pricing import priced


@main.command("network", short_help="Print the time of a step of runs on networks.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@priced("10gbe")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def network_command(
    runs: tuple[Path, ...],
    network: tuple[str, ...],
    as_json: bool,
    compute_ms: float | None,
    compress_ms: float | None,
    all_reduce: str,
    fusion: bool,
    overlap: bool,
) -> None:
    """Price the steps of runs, or folders of runs, on networks, from their folders alone.

    Times of compute and compression are those measured in the run, for one worker, unless given.
    """
    from ..results.network import networks_of
    from ..results.network_prices import price_table, prices
    from ..results.run_folders import find_runs
    from ..results.step_times import Pricing

    found = find_runs(runs, with_epochs=True)
    pricing = Pricing(compute_ms, compress_ms, all_reduce, fusion, overlap)
    rows = prices(found, networks_of(network), pricing)
    click.echo(json.dumps(rows, indent=2) if as_json else price_table(rows))
