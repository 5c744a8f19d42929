"""The command line: it reads options, calls one function, prints, and has no logic."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click

from . import __version__
from .options import StagedCommand, chosen, given, settings, spelled
from .settings import SettingError

_EXIT_CODES = {"Diverged": 3, "RankLost": 4, "Interrupted": 130}  # by name: rooms with torch
_OF_VERIFY = {"workers": 4, "dtype": "float64"}  # its defaults, where they differ


class OneLine(click.Group):
    """A group that tells a user's error in one line on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line and leave: 2 user's error, 3 diverged, 4 lost rank, 130 Ctrl-C."""
        kwargs["standalone_mode"] = False
        code = _code(lambda: super(OneLine, self).main(*args, **kwargs))
        if code == _EXIT_CODES["RankLost"]:
            os._exit(code)  # what is left of a broken process group may abort when it is torn down
        sys.exit(code)


@click.group(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="simsgd")
def main() -> None:
    """Simulate data-parallel SGD with compressed gradients on one device, and count the bytes.

    Begin with: simsgd train --workers 16 --prune 0.999
    """


@main.command(cls=StagedCommand)
@settings
def train(**options: Any) -> None:
    """Train with W simulated workers and record the bytes of every step."""
    from .trainer import train as run_training
    from .transport import is_first

    run = run_training(**given(options))
    if not options["quiet"] and is_first():
        click.echo(run.summary())


@main.command(cls=StagedCommand, context_settings={"default_map": _OF_VERIFY})
@settings
@click.option("--steps", default=50, show_default=True, help="Steps to compare.")
def verify(quiet: bool, **options: Any) -> int:
    """Hold a simulation to real processes: parameters, losses, and bytes on the real sends.

    Exits with 0 if parameters agree and bytes are equal, else with 1.
    """
    from .verify import verify as run_both

    said = given(options)
    verdict = run_both(say=(lambda text: None) if quiet else click.echo, **said)
    if not quiet:
        click.echo(verdict.summary())
    return 0 if verdict.holds else 1


@main.command("bytes", cls=StagedCommand)
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
    "seed",
)
@click.option("--num-classes", type=int, help="Classes of the model; default: its own.")
@click.option("--input-shape", metavar="CxHxW", help="Of one sample; default: the model's own.")
@click.option("--samples", type=int, help="Samples of an epoch, to count its bytes too.")
@click.option("--per-layer", is_flag=True, help="A line for each segment.")
@click.option("--explain", is_flag=True, help="Also the arithmetic of each segment.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def bytes_command(per_layer: bool, explain: bool, as_json: bool, **options: Any) -> None:
    """Count the bytes of a step without training, from the shapes of a model alone."""
    from .config import Config
    from .sizing import model_sizes

    said = given(options)
    apart = {name: said.pop(name, None) for name in ("samples", "num_classes", "input_shape")}
    config = Config.of(said)
    counted = model_sizes(config, **apart)
    if as_json:
        click.echo(json.dumps(counted.plain(), indent=2))
        return
    from .bill import bill

    click.echo(bill(counted, config.model or "lenet", per_layer, explain))


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of data sets.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
def evaluate(checkpoint: Path, **options: Any) -> None:
    """Print a checkpoint's loss and errors.

    CHECKPOINT is a file, or a run's folder, which means its last.pt.
    """
    from .evaluation import evaluate_checkpoint

    measured = evaluate_checkpoint(checkpoint, given(options))
    click.echo(f"validation loss     {measured['loss']:.4f}")
    click.echo(f"validation error@1  {measured['error1']:.2f} %")
    click.echo(f"validation error@5  {measured['error5']:.2f} %")


@main.command("plot-results")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-x", default="epoch", show_default=True, help="epoch, step or bytes.")
@click.option(
    "-y",
    multiple=True,
    default=["val_error1"],
    show_default=True,
    help="Column of epochs.csv, or of steps.csv where x is step; one panel for each.",
)
@click.option(
    "-o",
    "--output",
    default=Path("results.png"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Figure to write: .png, .svg or .pdf.",
)
def plot_results(runs: tuple[Path, ...], x: str, y: tuple[str, ...], output: Path) -> None:
    """Draw the curves of several runs in one figure."""
    from .plots import plot_results as draw

    draw(runs, x=x, y=y, path=output)
    click.echo(output)


@main.command("list")
@click.argument("kind")
def list_names(kind: str) -> None:
    """List what can be chosen by name.

    KIND is models, regimes, datasets, compressors, memories or engines.
    """
    from .listing import listing

    entries = listing(kind)
    width = max(len(name) for name, _ in entries)
    for name, meaning in entries:
        for line in meaning.splitlines():
            click.echo(f"{name:<{width}}  {line}")
            name = ""


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
    from .bench.compressors import measure, told

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
    from .bench.engines import measure, told

    measured = measure(quick, device, models, workers, batches)
    _reported(measured, told(measured), file)


def plot_results_main() -> None:
    """Run `plot-results` as a program of its own."""
    main(["plot-results", *sys.argv[1:]], prog_name="simsgd")


def _code(work: Callable[[], Any]) -> int:
    try:
        result = work()
    except SettingError as error:
        return _told(spelled(error, main.commands.values()), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _told(" ".join(error.format_message().split()), 2)
    except click.exceptions.Abort:
        return _told("stopped at once", 130)
    except RuntimeError as error:
        if type(error).__name__ not in _EXIT_CODES:
            raise
        return _told(str(error), _EXIT_CODES[type(error).__name__])
    return result if isinstance(result, int) else 0


def _told(text: str, code: int) -> int:
    click.echo(f"simsgd: {text}", err=True)
    return code
