"""`simsgd bytes`: count the bytes of a step."""

import json

import click

from ..results.config_values import OF_BYTES
from .group import main
from .numbers import WHOLE
from .options import StagedCommand, chosen, given, shape_options
from .terminal import show


@main.command("bytes", cls=StagedCommand, short_help="Count the bytes of a step, without training.")
@chosen(*OF_BYTES)
@shape_options
@click.option("--samples", type=WHOLE, help="Samples of an epoch, to count its bytes too.")
@click.option("--per-layer", is_flag=True, help="Print a line for each segment.")
@click.option("--explain", is_flag=True, help="Also print the arithmetic of each segment.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def bytes_command(per_layer: bool, explain: bool, as_json: bool, **options: object) -> None:
    """Count the bytes of a step without training, from the shapes of a model alone.

    Where workers exchange once in several steps, this is for the whole round, for the step that
    sends most, and for a step on average. The bytes of --downlink, butterfly and async do not
    follow from the shapes, and are refused.
    """
    from ..simulator.step_bytes import bytes_of

    counted = bytes_of(**given(options))
    show(json.dumps(counted.plain(), indent=2) if as_json else counted.summary(per_layer, explain))
