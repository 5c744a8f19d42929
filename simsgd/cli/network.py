"""Commands that tell what a step takes on a network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..results.network import ALL_REDUCES, NETWORKS, networks_of
from ..results.step_times import Pricing
from .group import main
from .options import chosen, given

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LINK = f"{', '.join(NETWORKS)}, or bandwidth=10Gbit,latency=50us; repeatable."


def priced(*default: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--network`, with these by default, and those of `Pricing`."""

    def add(command: _Command) -> _Command:
        for option in reversed(_OPTIONS):
            command = option(command)
        network = click.option(
            "--network",
            "networks",
            multiple=True,
            default=list(default),
            show_default=bool(default),
            metavar="SPEC",
            help=_LINK,
        )
        return network(command)

    return add


def pricing_of(options: dict[str, Any]) -> Pricing:
    """Return the pricing that options describe."""
    return Pricing(**{name: options[name] for name in Pricing.__dataclass_fields__})


_OPTIONS = [
    click.option(
        "--compute-ms", type=float, metavar="MS", help="Forward and backward of a worker."
    ),
    click.option("--compress-ms", type=float, metavar="MS", help="A worker's compression."),
    click.option(
        "--all-reduce",
        type=click.Choice(ALL_REDUCES),
        default="ring",
        show_default=True,
        help="How an all-reduce goes.",
    ),
    click.option(
        "--fusion/--no-fusion",
        default=True,
        show_default=True,
        help="The messages of all segments go together, or each by itself.",
    ),
    click.option("--overlap", is_flag=True, help="Communication goes on during backward."),
]
_json = click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")


@main.command("network")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@priced("10gbe")
@_json
def network_command(
    runs: tuple[Path, ...], networks: tuple[str, ...], as_json: bool, **how: Any
) -> None:
    """Price the steps of runs, or folders of runs, on networks, from their folders alone.

    Times of compute and compression are those measured in the run, for one worker, unless given.
    """
    from ..results.network_prices import price_table, prices
    from ..results.run_folders import find_runs

    rows = prices(find_runs(runs, with_epochs=True), networks_of(networks), pricing_of(how))
    click.echo(json.dumps(rows, indent=2) if as_json else price_table(rows))


@main.command()
@chosen("model", "model_config", "dtype", "workers")
@click.option(
    "--compressor",
    "compressors",
    multiple=True,
    metavar="SPEC",
    help="Only this; repeatable. Default: every one that is known, with usual settings.",
)
@priced("10gbe")
@_json
@chosen("granularity", "compress_if", "value_dtype", "index_dtype", "seed")
@click.option("--num-classes", type=int, help="Classes of the model; default: its own.")
@click.option("--input-shape", metavar="CxHxW", help="Of one sample; default: the model's own.")
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Where compression is timed: auto, cpu, cuda.",
)
@click.option(
    "--measure/--no-measure", default=True, show_default=True, help="Time compression here."
)
def advise(
    networks: tuple[str, ...],
    compressors: tuple[str, ...],
    as_json: bool,
    device: str,
    measure: bool,
    **options: Any,
) -> None:
    """Tell which compressor is fastest on a network, and whether dense all-reduce is.

    Bytes come from the shapes of the model alone; compression is timed on one worker's gradient.
    """
    from ..bench.advise import advice, told
    from ..config import Config

    said = given(options)
    apart = {name: said.pop(name, None) for name in ("num_classes", "input_shape")}
    how = pricing_of(options)
    config = Config.of({k: v for k, v in said.items() if k not in Pricing.__dataclass_fields__})
    links = networks_of(networks)
    found = advice(config, links, how, compressors, measure, device, **apart)
    if as_json:
        plain = {name: [o.plain() for o in rows] for name, rows in found.items()}
        click.echo(json.dumps(plain, indent=2))
        return
    what = f"{config.model or 'lenet'}, {config.workers} workers"
    click.echo("\n\n".join(told(found[link.name], link, how, what) for link in links))
