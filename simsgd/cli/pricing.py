"""The options that price a step on networks, shared by several commands."""

from collections.abc import Callable
from typing import TypeVar

import click

from ..results.network import ALL_REDUCES, NETWORKS
from .completion import completes
from .numbers import REAL

_Command = TypeVar("_Command", bound=Callable[..., object])
_LINK = f"{', '.join(NETWORKS)}, or bandwidth=10Gbit,latency=50us; repeatable."
_OPTIONS = [
    click.option("--compute-ms", type=REAL, metavar="MS", help="Forward and backward of a worker."),
    click.option("--compress-ms", type=REAL, metavar="MS", help="A worker's compression."),
    click.option(
        "--all-reduce",
        type=click.Choice(ALL_REDUCES),
        default="ring",
        show_default=True,
        help="Algorithm of an all-reduce.",
    ),
    click.option(
        "--fusion/--no-fusion",
        default=True,
        show_default=True,
        help="Send the messages of all segments together, or one by one.",
    ),
    click.option("--overlap", is_flag=True, help="Communicate during the backward pass."),
]


def priced(*default: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--network`, with these by default, and the other prices."""

    def add(command: _Command) -> _Command:
        for option in reversed(_OPTIONS):
            command = option(command)
        network = click.option(
            "--network",
            multiple=True,
            default=list(default),
            show_default=bool(default),
            metavar="SPEC",
            shell_complete=completes("network"),
            help=_LINK,
        )
        return network(command)

    return add
