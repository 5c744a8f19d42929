"""Checks and measures a device in one go, of at most eight minutes on a GPU, and writes a page.

Letters: W workers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..results.text_table import TextTable, columns
from ..settings import SettingError, one_line
from ..training.devices import device_of
from ..training.environment import environment
from . import algorithms, auto, compressors, engines, kernels, step
from .compressors import SPECS
from .device_checks import agreement, waits
from .device_tests import cuda_tests
from .tables import Measured, Row, heading, noted
from .timing import budget, seconds_left

_SECONDS = 450.0  # of all parts; the case that is then at work ends by eight minutes
_FEW = ("mlp", "lenet", "resnet")
_SOME = ("mlp", "resnet20", "gpt")
_TABLES: dict[str, tuple[Any, dict[str, Any]]] = {  # by title: a bench and its settings
    "The choice of an engine": (auto, {"workers": (16,)}),
    "The choice of an engine, a model each": (
        auto,
        {"model": _SOME, "workers": (16,), "batch": (4,), "own_models": True},
    ),
    "Engines": (engines, {"model": _FEW, "workers": (16,)}),
    "A whole step": (step, {"model": _FEW, "workers": (16,), "processes": False}),
    "Compressors": (compressors, {}),
    "Algorithms": (algorithms, {"model": ("resnet",), "workers": (16,)}),
    "Kernels of a step": (kernels, {"plan": "gpu"}),
}
_SHARES = {"agreement": 6, "waits": 3, "tests": 8, "The choice of an engine": 9}  # of time; else 4
_KEPT = ("own_models", "processes")  # settings of a table that a quick one has too
_COUNTED = ("Kernels of a step",)  # the same on every device
_LEFT_OUT = ("variance", "dion2")  # need squares of samples; the mean of all workers
_Part = Callable[[list[str]], list[Row]]  # rows of a part; what it left out goes to its notes


def measure(quick: bool = False, device: str = "auto", page: Path | str | None = None) -> Measured:
    """Return {"machine": ..., "rows": [...]}; each row says in "table" where it belongs.

    "agreement" holds gradients and messages to the CPU's; on a GPU, "waits" says which methods'
    steps wait for it, and "tests" how the tests that need one ended, where a checkout has them. The
    others are rows of benches. Each part has its share of eight minutes, and of what those before
    it did not need; what did not fit is named in "notes". `page` is a file to write all of it to,
    as Markdown. Raises `SettingError` for a device that is not here and a page that cannot be
    written.
    """
    device = device_of(device)
    path = None if page is None else Path(page)
    _check_page(path)
    rows: list[Row] = []
    notes: list[str] = []
    parts = _parts(device, quick)
    with budget(_SECONDS):
        for number, (name, part) in enumerate(parts.items()):
            with budget(_share(name, list(parts)[number:])):
                rows += part(notes)
    measured = noted({"machine": environment(device), "rows": rows}, notes)
    if path is not None:
        path.write_text(page_of(measured, device), encoding="utf-8")
    return measured


def _share(part: str, to_come: Sequence[str]) -> float:
    """Return the seconds that a part has of those that are left, of itself and what follows."""
    return seconds_left() * _SHARES.get(part, 4) / sum(_SHARES.get(name, 4) for name in to_come)


def _parts(device: str, quick: bool) -> dict[str, _Part]:
    specs = [spec for spec in SPECS if spec not in _LEFT_OUT]
    parts: dict[str, _Part] = {"agreement": lambda notes: agreement(device, specs, notes)}
    if device.startswith("cuda"):
        parts |= {"waits": lambda notes: waits(device, notes), "tests": partial(_tested, device)}
    return parts | {title: partial(_bench, title, device, quick) for title in _TABLES}


def _tested(device: str, notes: list[str]) -> list[Row]:
    rows, more = cuda_tests(device, max(0.0, seconds_left()))
    notes += more
    return rows


def _bench(title: str, device: str, quick: bool, notes: list[str]) -> list[Row]:
    if seconds_left() <= 0:
        notes.append(f"{title}: there was no time for it")
        return []
    bench, settings = _TABLES[title]
    own = {name: value for name, value in settings.items() if not quick or name in _KEPT}
    own |= {"quick": quick} | ({} if title in _COUNTED else {"device": device})
    found = bench.measure(**own)
    notes += [f"{title}: {note}" for note in found.get("notes", [])]
    return [{"table": title, **row} for row in found["rows"]]


def tables(measured: Measured) -> list[str | TextTable]:
    """Return the rows in words, table by table behind its title."""
    return [part for title, parts in _texts(measured) for part in (title, *parts)]


def page_of(measured: Measured, device: str) -> str:
    """Return a page of Markdown with all that was measured."""
    where = heading(measured["machine"])
    on_gpu = device.startswith("cuda")
    parts = [
        "# Measured on one device",
        "```console\nsimsgd bench device --page FILE.md\n```",
        f"Measured on {where}." + ("" if on_gpu else " That is no GPU: none was measured."),
    ]
    for title, found in _texts(measured):
        text = "\n\n".join(map(str, found))
        parts += [f"## {title}", f"```text\n{text}\n```"]
    return "\n\n".join([*parts, *measured.get("notes", [])]) + "\n"


def _texts(measured: Measured) -> list[tuple[str, Sequence[str | TextTable]]]:
    of = {title: _of(measured, title) for title in ("agreement", "waits", "tests", *_TABLES)}
    texts: list[tuple[str, Sequence[str | TextTable]]] = [
        ("Agreement with the CPU, in float64", [_agreement(of["agreement"])])
    ]
    if of["waits"]:
        cells = [[r["method"], str(r["waits"])] for r in of["waits"]]
        texts.append(("Steps that wait for the device", [TextTable(["method", "waits"], cells)]))
    if of["tests"]:
        texts.append(("Tests that need a GPU", [_outcomes(of["tests"])]))
    for title, (bench, _) in _TABLES.items():
        if of[title]:
            own = {"compressor": "none", **measured, "rows": of[title]}
            texts.append((title, bench.tables(own)))
    return texts


def _of(measured: Measured, title: str) -> list[Row]:
    return [row for row in measured["rows"] if row["table"] == title]


def _agreement(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    cells = [
        [row["check"], f"{row['distance']:.1e}", "yes" if row["agrees"] else "NO"] for row in rows
    ]
    return TextTable(["check", "relative distance", "agrees"], cells)


def _outcomes(rows: Sequence[Row]) -> str:
    """Return how many tests ended how, and those that did not pass."""
    counts = Counter(row["outcome"] for row in rows)
    counted = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    others = [[row["test"], row["outcome"]] for row in rows if row["outcome"] != "passed"]
    return f"{counted}\n{columns(others)}" if others else counted


def _check_page(page: Path | None) -> None:
    """Raise `SettingError` for a page that cannot be written, before anything is measured."""
    if page is None:
        return
    try:
        with page.open("a", encoding="utf-8"):
            pass
    except OSError as wrong:
        raise SettingError("page", page, f"cannot be written: {one_line(wrong)}") from wrong
