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
    click.option(
        "--compute-ms",
        metavar="MS|lognormal:MS,SIGMA",
        help="Time of a worker's forward and backward pass; lognormal:100,0.3 draws one for each "
        "worker and step, with a median of 100 ms (,seed=N for other draws).",
    ),
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
    click.option(
        "--overlap",
        is_flag=False,
        flag_value="perfect",
        default="none",
        show_default=True,
        metavar="none|buckets|buckets:SIZE|perfect",
        shell_complete=completes("overlap"),
        help="Communicate during backward: in buckets as they fill (of 25 MiB, the first of 1 MiB, "
        "or all of SIZE), or as much as any schedule could hide (perfect).",
    ),
]


_COMPRESSION = click.option(
    "--compress-ms", type=REAL, metavar="MS", help="Time of a worker's compression."
)
_COMPRESSION_OR_FILE = click.option(
    "--compress-ms",
    metavar="MS|FILE",
    help="Time of a worker's compression, or a file that bench compressors --json wrote on any "
    "machine.",
)


CLUSTER = click.option(
    "--cluster",
    metavar="NxG",
    help="Each worker is one of N nodes with G devices, and --network two networks, within nodes "
    "and between them: --cluster 4x8 --network nvlink,10gbe.",
)


def priced(*default: str, file: bool = False) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--network`, with these by default, and the other prices.

    Compression may also be in a `file`, where a command can read it.
    """

    def add(command: _Command) -> _Command:
        first, *others = _OPTIONS
        compression = _COMPRESSION_OR_FILE if file else _COMPRESSION
        for option in reversed([first, compression, *others]):
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
