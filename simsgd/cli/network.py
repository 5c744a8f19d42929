"""`simsgd network`: price the steps of runs on networks."""

import json
from pathlib import Path

import click

from ..settings import size_in_bytes
from .completion import complete_runs
from .group import main
from .paths import PATH
from .pricing import CLUSTER, priced
from .terminal import echo_page, echo_table, show


@main.command("network", short_help="Print the time of a step of runs on networks.")
@click.argument("runs", nargs=-1, required=True, type=PATH, shell_complete=complete_runs)
@priced("10gbe")
@CLUSTER
@click.option(
    "--to",
    metavar="NAME=VALUE",
    help="Also print when each run first reaches this, such as error=5 or val_loss=2.0.",
)
@click.option(
    "--at-bytes",
    metavar="SIZE",
    help="Also print the metric once each worker had sent this many bytes, such as 10MB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def network_command(
    runs: tuple[Path, ...],
    network: tuple[str, ...],
    as_json: bool,
    to: str | None,
    at_bytes: str | None,
    compute_ms: str | None,
    compress_ms: float | None,
    all_reduce: str,
    fusion: bool,
    overlap: str,
    cluster: str | None,
) -> None:
    """Print the time of a step of runs, or folders of runs, on networks, from their folders alone.

    Times of compute and compression are those measured in the run, for one worker, unless given.
    """
    from ..results.network import networks_of
    from ..results.network_prices import DISPENSABLE, price_table, prices, target_table
    from ..results.pricing import Pricing
    from ..results.run_folders import find_runs
    from ..results.targets import Target, never_reached, outside
    from ..results.text_table import TextPage

    pricing = Pricing(compute_ms, compress_ms, all_reduce, fusion, overlap, cluster)
    target = None if to is None else Target.of(to)
    size = None if at_bytes is None else size_in_bytes("at_bytes", at_bytes)
    found = find_runs(runs, with_epochs=True, with_steps=True)
    rows = prices(found, networks_of(network), pricing, target, size)
    if as_json:
        show(json.dumps(rows, indent=2))
        return
    echo_table(price_table(rows), DISPENSABLE, "--json has all")
    if target is not None or size is not None:
        show("")
        table = target_table(rows, found, to or "", at_bytes or "")
        echo_table(table, ("steps", "sent"), "--json has all")
    notes = [] if target is None else never_reached(found, target)
    notes += [] if size is None else outside(found, size)
    if notes:
        echo_page(TextPage(["\n" + "\n".join(notes)]), "")
