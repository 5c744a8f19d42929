"""Commands that measure how fast things run."""

import json
from typing import Any, TextIO

import click

from .group import main


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
@click.option("--quick", is_flag=True, help="Small models and few workers: a check, no result.")
@_device
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this; repeatable.")
@click.option("--workers", multiple=True, type=int, metavar="W", help="Only this; repeatable.")
@click.option(
    "--batch", "batches", multiple=True, type=int, metavar="b", help="Only this; repeatable."
)
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


@bench.command("data")
@click.option("--quick", is_flag=True, help="A small model and few images: a check, no result.")
@_device
@_json
def bench_data(quick: bool, device: str, file: TextIO | None) -> None:
    """Time the data of a batch beside its training step."""
    from ..bench.data import measure, told

    measured = measure(quick, device)
    _reported(measured, told(measured), file)
