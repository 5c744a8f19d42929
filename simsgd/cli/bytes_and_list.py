"""Commands that count and list, without training."""

import json
from typing import Any

import click

from .group import main
from .options import StagedCommand, chosen, given


@main.command("bytes", cls=StagedCommand, short_help="Count the bytes of a step, untrained.")
@chosen(
    "model",
    "model_config",
    "dtype",
    "workers",
    "batch_size",
    "global_batch_size",
    "accumulate",
    "prune",
    "compressor",
    "granularity",
    "compress_if",
    "prune_1d",
    "value_dtype",
    "index_dtype",
    "aggregate",
    "algorithm",
    "downlink",
    "seed",
)
@click.option("--num-classes", type=int, help="Classes of the model; default: its own.")
@click.option("--input-shape", metavar="CxHxW", help="Of one sample; default: the model's own.")
@click.option("--samples", type=int, help="Samples of an epoch, to count its bytes too.")
@click.option("--per-layer", is_flag=True, help="A line for each segment.")
@click.option("--explain", is_flag=True, help="Also the arithmetic of each segment.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def bytes_command(per_layer: bool, explain: bool, as_json: bool, **options: Any) -> None:
    """Count the bytes of a step without training, from the shapes of a model alone.

    Those of gossip, local and asynchronous methods and of a downlink are not in the shapes, and
    are refused.
    """
    from ..config import Config
    from ..simulator.step_bytes import model_sizes

    said = given(options)
    apart = {name: said.pop(name, None) for name in ("samples", "num_classes", "input_shape")}
    config = Config.of(said)
    counted = model_sizes(config, **apart)
    if as_json:
        click.echo(json.dumps(counted.plain(), indent=2))
        return
    from ..simulator.step_bytes_report import bill

    click.echo(bill(counted, config.model or "lenet", per_layer, explain))


@main.command("list")
@click.argument("kind")
@click.option("--workers", type=int, help="Of topologies: those of W workers, measured.")
def list_names(kind: str, workers: int | None) -> None:
    """List what can be chosen by name.

    KIND is models, regimes, datasets, compressors, memories, algorithms, topologies or engines.
    """
    from .list_names import listing

    entries = listing(kind, workers)
    width = max(len(name) for name, _ in entries)
    for name, meaning in entries:
        for line in meaning.splitlines():
            click.echo(f"{name:<{width}}  {line}")
            name = ""
