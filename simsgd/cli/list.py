"""`simsgd list`: list what can be chosen by name."""

import click

from .completion import completes
from .group import main
from .numbers import WHOLE
from .terminal import show


@main.command("list")
@click.argument("kind", shell_complete=completes("listed"))
@click.option("--workers", type=WHOLE, help="Measure the topologies for W workers.", metavar="W")
def list_command(kind: str, workers: int | None) -> None:
    """List what can be chosen by name.

    KIND is models, regimes, datasets, compressors, memories, algorithms, methods,
    aggregations, outer-optimizers, topologies or engines.
    """
    from ..training.choices import list_names

    entries = list_names(kind, workers)
    width = max(map(len, entries))
    for name, meaning in entries.items():
        for line in meaning.splitlines():
            show(f"{name:<{width}}  {line}")
            name = ""
