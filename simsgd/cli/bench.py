"""`simsgd bench`: measure how fast things run on this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

from ..bench.benches import BENCHES
from .group import main
from .numbers import WHOLE
from .terminal import show

_OPTIONS = {  # by the name of the setting of a bench
    "quick": click.option(
        "--quick", is_flag=True, help="Small models and few workers: a check, not a result."
    ),
    "device": click.option(
        "--device", default="cpu", show_default=True, help="auto, cpu, cuda or cuda:N."
    ),
    "model": click.option(
        "--model", multiple=True, metavar="NAME", help="Time only this; repeatable."
    ),
    "workers": click.option(
        "--workers", multiple=True, type=WHOLE, metavar="W", help="Time only this; repeatable."
    ),
    "batch": click.option(
        "--batch", multiple=True, type=WHOLE, metavar="b", help="Only this; repeatable."
    ),
    "plan": click.option(
        "--plan",
        default="auto",
        show_default=True,
        metavar="PLAN",
        help="auto, cpu or gpu: in which calls a step is divided.",
    ),
    "link": click.option(
        "--link",
        multiple=True,
        metavar="RATE",
        help="Time only links of this rate, such as 100Mbit; repeatable.",
    ),
    "compressors": click.option(
        "--compressor",
        "compressors",
        multiple=True,
        metavar="SPEC",
        help="Time only this, such as topk:0.01; repeatable.",
    ),
    "compressor": click.option(
        "--compressor",
        default="none",
        show_default=True,
        metavar="SPEC",
        help="Compressor of the messages.",
    ),
    "processes": click.option(
        "--processes/--no-processes", default=True, help="Real processes too, up to 16."
    ),
    "page": click.option(
        "--page",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Also write all of it as a page of Markdown.",
    ),
    "plot": click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Also draw the rows: .png, .svg or .pdf.",
    ),
}
_JSON = click.option(
    "--json",
    "file",
    type=click.File("w", encoding="utf-8", lazy=False),
    metavar="FILE",
    help="Also write the rows to a file.",
)


@main.group()
def bench() -> None:
    """Measure how fast things run on this machine."""


def _command(name: str) -> Callable[..., None]:
    def run(file: TextIO | None, plot: Path | None = None, **settings: object) -> None:
        from ..bench.benches import bench as measure

        found = measure(name, plot, **settings)
        if file is not None:
            file.write(json.dumps(found.plain(), indent=2) + "\n")
        show(found.summary())

    run.__doc__ = BENCHES[name].about
    return run


for _name, _bench in BENCHES.items():
    _added = _JSON(_command(_name))
    for _setting in reversed(_bench.settings):
        _added = _OPTIONS[_setting](_added)
    bench.command(_name)(_added)
