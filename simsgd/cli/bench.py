"""Commands that measure how fast things run."""

import json
from pathlib import Path
from typing import Any, TextIO

import click

from .group import main


@main.command("tune-consensus")
@click.option("--workers", default=16, show_default=True, metavar="W")
@click.option("--topology", "graph", default="ring", show_default=True, metavar="NAME|FILE")
@click.option("--compressor", default="topk:0.01", show_default=True, metavar="SPEC")
@click.option(
    "--algorithm", default="choco", show_default=True, help="choco or deepsqueeze.", metavar="NAME"
)
@click.option("--elements", default=1000, show_default=True, help="Numbers of each worker.")
@click.option("--rounds", default=300, show_default=True, help="Rounds of gossip.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Figure to write: .png, .svg or .pdf.",
)
def tune_consensus(output: Path | None, **options: Any) -> None:
    """Find the consensus step size by gossip alone, without training.

    Workers begin at random numbers; what is told is the factor by which their consensus distance
    falls in a round.
    """
    from ..bench.consensus import tune
    from ..results.figures.style import THEMES, require_suffix, save

    require_suffix(output)
    found = tune(**options)
    click.echo(found.summary())
    if output is not None:
        save(found.plot(), output, THEMES["screen"])
        click.echo(output)


@main.group()
def bench() -> None:
    """Measure how fast things run on this machine."""


_device = click.option(
    "--device", default="cpu", show_default=True, help="auto, cpu, cuda or cuda:N."
)
_json = click.option(
    "--json",
    "file",
    type=click.File("w", encoding="utf-8", lazy=False),
    metavar="FILE",
    help="Also write the rows to a file.",
)


_plot = click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw the rows: .png, .svg or .pdf.",
)
_model = click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Only this; repeatable."
)
_workers = click.option(
    "--workers", multiple=True, type=int, metavar="W", help="Only this; repeatable."
)
_batch = click.option(
    "--batch", "batches", multiple=True, type=int, metavar="b", help="Only this; repeatable."
)
_quick = click.option(
    "--quick", is_flag=True, help="Small models and few workers: a check, no result."
)


def _reported(measured: dict[str, Any], text: str, file: TextIO | None) -> None:
    if file is not None:
        file.write(json.dumps(measured, indent=2) + "\n")
    click.echo(text)


@bench.command("compressors")
@click.option("--quick", is_flag=True, help="Small gradients of few workers: a check, no result.")
@_device
@_json
def bench_compressors(quick: bool, device: str, file: TextIO | None) -> None:
    """Time every compressor beside one read and one write of the same memory."""
    from ..bench.compressors import measure, told

    measured = measure(quick, device)
    _reported(measured, told(measured), file)


@bench.command("engines")
@_quick
@_device
@_model
@_workers
@_batch
@_json
def bench_engines(
    quick: bool,
    device: str,
    models: tuple[str, ...],
    workers: tuple[int, ...],
    batches: tuple[int, ...],
    file: TextIO | None,
) -> None:
    """Time every engine beside one plain large batch."""
    from ..bench.engines import measure, told

    measured = measure(quick, device, models, workers, batches)
    _reported(measured, told(measured), file)


@bench.command("step")
@_quick
@_device
@_model
@_workers
@_batch
@click.option("--processes/--no-processes", default=True, help="Real processes too, up to 16.")
@_plot
@_json
def bench_step(
    quick: bool,
    device: str,
    models: tuple[str, ...],
    workers: tuple[int, ...],
    batches: tuple[int, ...],
    processes: bool,
    plot: Path | None,
    file: TextIO | None,
) -> None:
    """Time a whole training step beside plain SGD, a loop over workers, and real processes."""
    from ..bench.figures import check_suffix, draw_steps
    from ..bench.step import measure, told

    check_suffix(plot)
    measured = measure(quick, device, models, workers, batches, processes)
    _reported(measured, told(measured), file)
    if plot is not None:
        draw_steps(measured["rows"], plot)


@bench.command("algorithms")
@_quick
@_device
@_model
@_workers
@click.option(
    "--compressor",
    default="none",
    show_default=True,
    metavar="SPEC",
    help="What messages are said with.",
)
@_json
def bench_algorithms(
    quick: bool,
    device: str,
    models: tuple[str, ...],
    workers: tuple[int, ...],
    compressor: str,
    file: TextIO | None,
) -> None:
    """Time a training step of every algorithm beside one of allreduce."""
    from ..bench.algorithms import measure, told

    measured = measure(quick, device, models, workers, compressor)
    _reported(measured, told(measured), file)


@bench.command("scaling")
@_quick
@_device
@_workers
@_plot
@_json
def bench_scaling(
    quick: bool, device: str, workers: tuple[int, ...], plot: Path | None, file: TextIO | None
) -> None:
    """Time a training step over workers at a fixed global batch, and over parameters."""
    from ..bench.figures import check_suffix, draw_scaling
    from ..bench.scaling import measure, told

    check_suffix(plot)
    measured = measure(quick, device, workers)
    _reported(measured, told(measured), file)
    if plot is not None:
        draw_scaling(measured["rows"], plot)


@bench.command("data")
@_quick
@_device
@_json
def bench_data(quick: bool, device: str, file: TextIO | None) -> None:
    """Time the data of a batch beside its training step."""
    from ..bench.data import measure, told

    measured = measure(quick, device)
    _reported(measured, told(measured), file)
