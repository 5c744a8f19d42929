"""`simsgd bench`: measure how fast things run on this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..bench.benches import BENCHES
from ..results.atomic_files import NotWritten, replace
from .group import main
from .numbers import WHOLE
from .paths import FilePath
from .terminal import echo_page

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _only(*names: str, metavar: str, what: str = "this", **more: Any) -> _Decorator:
    """Return an option that leaves out all others, and may be given several times."""
    text = f"Only {what}; repeatable."
    return click.option(*names, multiple=True, metavar=metavar, help=text, **more)


def _writable(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before what is measured for minutes."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}", context, option)
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written", context, option)
    return path


def _file(*names: str, text: str) -> _Decorator:
    kind = FilePath(path_type=Path, dir_okay=False)
    return click.option(*names, type=kind, callback=_writable, metavar="FILE", help=text)


def _device(default: str) -> _Decorator:
    text = "auto, cpu, cuda or cuda:N."
    return click.option("--device", default=default, show_default=True, help=text)


_OPTIONS: dict[str, _Decorator] = {  # by the name of the setting of a bench
    "quick": click.option(
        "--quick", is_flag=True, help="Small models and few workers: a check, not a result."
    ),
    "device": _device("cpu"),
    "model": _only("--model", metavar="NAME"),
    "workers": _only("--workers", metavar="W", type=WHOLE),
    "batch": _only("--batch", metavar="b", type=WHOLE),
    "threads": _only(
        "--threads",
        metavar="N",
        what="this number of threads (default: all that torch has)",
        type=WHOLE,
    ),
    "link": _only("--link", metavar="RATE", what="links of this rate, such as 100Mbit"),
    "compressors": _only(
        "--compressor", "compressors", metavar="SPEC", what="this, such as topk:0.01"
    ),
    "own_models": click.option(
        "--own-models", is_flag=True, help="Give each worker its own model, as in gossip."
    ),
    "plan": click.option(
        "--plan",
        default="auto",
        show_default=True,
        metavar="PLAN",
        help="How a step is split into calls: auto, cpu or gpu.",
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
    "page": _file("--page", text="Also write all of it as a page of Markdown."),
    "plot": _file("--plot", text="Also draw the rows: .png, .svg or .pdf."),
}
_OWN_OPTIONS = {("device", "device"): _device("auto")}  # by bench and setting, in place of those
_JSON = _file("--json", "file", text="Also write the rows to a file.")


@main.group()
def bench() -> None:
    """Measure how fast things run on this machine."""


def _command(name: str) -> Callable[..., None]:
    def run(file: Path | None, plot: Path | None = None, **settings: object) -> None:
        from ..bench.benches import bench as measure

        found = measure(name, plot, **settings)
        if file is not None:
            text = json.dumps(found.plain(), indent=2) + "\n"
            if file.is_file() or not file.exists():
                replace(file, lambda into: into.write(text.encode()))
            else:  # a pipe, or /dev/stdout
                try:
                    file.write_text(text, "utf-8")
                except OSError as wrong:
                    raise NotWritten(file, wrong) from wrong
        echo_page(found.page(), "--json FILE has all")

    run.__doc__ = BENCHES[name].about
    return run


for _name, _bench in BENCHES.items():
    _added: Callable[..., None] = _JSON(_command(_name))
    for _setting in reversed(_bench.settings):
        _added = _OWN_OPTIONS.get((_name, _setting), _OPTIONS[_setting])(_added)
    bench.command(_name, short_help=_bench.about)(_added)
