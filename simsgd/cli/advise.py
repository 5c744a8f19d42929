"""`simsgd advise`: find the fastest compressor on a network."""

import json

import click

from .group import main
from .options import chosen, given, shape_options
from .pricing import CLUSTER, priced
from .terminal import echo_page, show


@main.command(short_help="Find the fastest compressor on a network.")
@chosen("model", "model_config", "dtype", "workers")
@click.option(
    "--compressor",
    multiple=True,
    metavar="SPEC",
    help="Try only this; repeatable. Default: every registered one, with usual settings.",
)
@priced("10gbe", file=True)
@CLUSTER
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@chosen("granularity", "compress_if", "value_dtype", "index_dtype", "collective", "seed")
@shape_options
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Where compression is timed: auto, cpu, cuda.",
)
@click.option(
    "--measure/--no-measure", default=True, show_default=True, help="Time compression here."
)
def advise(network: tuple[str, ...], as_json: bool, **options: object) -> None:
    """Find the fastest compressor on a network, and whether dense all-reduce is faster still.

    Bytes come from the shapes of the model alone; compression is timed on one worker's gradient.
    """
    from ..bench.advise import advise as price_all

    advice = price_all(network, **given(options))
    if as_json:
        show(json.dumps(advice.plain(), indent=2))
    else:
        echo_page(advice.page(), "--json has all")
