"""`simsgd list`: list what can be chosen by name."""

import click

from .completion import completes
from .group import main
from .numbers import WHOLE
from .terminal import show, terminal_width


@main.command("list")
@click.argument("kind", shell_complete=completes("listed"))
@click.option("--workers", type=WHOLE, help="Measure the topologies for W workers.", metavar="W")
def list_command(kind: str, workers: int | None) -> None:
    """List what can be chosen by name.

    KIND is models, regimes, datasets, compressors, memories, algorithms, methods, aggregations,
    attacks, outer-optimizers, topologies or engines.
    """
    from ..results.text_table import wrapped
    from ..training.choices import list_names

    entries = list_names(kind, workers)
    width = max(map(len, entries)) + 2
    room = terminal_width()
    for name, meaning in entries.items():
        text = meaning if room is None else wrapped(meaning, max(20, room - width))
        for line in text.splitlines():
            show(f"{name:<{width}}{line}")
            name = ""
