"""Checks and measures a device in one go, of at most eight minutes on a GPU, and writes a page.

Letters: W workers.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..results.text_table import columns
from ..settings import SettingError, one_line
from ..training.devices import device_of
from ..training.environment import environment
from . import algorithms, compressors, engines, kernels, step
from .compressors import SPECS
from .device_checks import agreement, waits
from .tables import Measured, Row, heading, noted

_LAST_START = 300.0  # seconds after which no other table is begun
_FEW = ("mlp", "lenet", "resnet")
_TABLES: dict[str, tuple[Any, dict[str, Any]]] = {  # by title: a bench and its settings
    "Kernels of a step": (kernels, {"plan": "gpu"}),
    "Engines": (engines, {"model": _FEW, "workers": (16,)}),
    "A whole step": (step, {"model": _FEW, "workers": (16,), "processes": False}),
    "Compressors": (compressors, {}),
    "Algorithms": (algorithms, {"model": ("resnet",), "workers": (16,)}),
}
_COUNTED = ("Kernels of a step",)  # the same on every device
_LEFT_OUT = ("variance", "dion2")  # need squares of samples; the mean of all workers


def measure(quick: bool = False, device: str = "auto", page: Path | str | None = None) -> Measured:
    """Return {"machine": ..., "rows": [...]}; each row says in "table" where it belongs.

    "agreement" holds gradients and messages to the CPU's, "waits" says which methods' steps wait
    for a GPU, the others are rows of benches. What there was no time for is named in "notes".
    `page` is a file to write all of it to, as Markdown. Raises `SettingError` for a device that is
    not here and a page that cannot be written.
    """
    device = device_of(device)
    path = None if page is None else Path(page)
    _check_page(path)
    began = time.perf_counter()
    rows = agreement(device, [spec for spec in SPECS if spec not in _LEFT_OUT])
    rows += waits(device) if device.startswith("cuda") else []
    notes: list[str] = []
    for title, (bench, settings) in _TABLES.items():
        if time.perf_counter() - began > _LAST_START:
            notes.append(f"{title} is left out: {_LAST_START:.0f} s had passed")
            continue
        own = {"quick": True} if quick else dict(settings)
        own |= {} if title in _COUNTED else {"device": device}
        if quick and title == "A whole step":
            own["processes"] = False
        found = bench.measure(**own)
        rows += [{"table": title, **row} for row in found["rows"]]
        notes += found.get("notes", [])
    measured = noted({"machine": environment(device), "rows": rows}, notes)
    if path is not None:
        path.write_text(page_of(measured, device), encoding="utf-8")
    return measured


def tables(measured: Measured) -> list[str]:
    """Return the rows as text, table by table."""
    return [f"{title}\n\n{text}" for title, text in _texts(measured)]


def page_of(measured: Measured, device: str) -> str:
    """Return a page of Markdown with all that was measured."""
    where = heading(measured["machine"])
    on_gpu = device.startswith("cuda")
    parts = [
        "# Measured on one device",
        "```console\nsimsgd bench device --page FILE.md\n```",
        f"Measured on {where}." + ("" if on_gpu else " That is no GPU: none was measured."),
    ]
    for title, text in _texts(measured):
        parts += [f"## {title}", f"```text\n{text}\n```"]
    return "\n\n".join([*parts, *measured.get("notes", [])]) + "\n"


def _texts(measured: Measured) -> list[tuple[str, str]]:
    of = {title: _of(measured, title) for title in ("agreement", "waits", *_TABLES)}
    texts = [("Agreement with the CPU, in float64", _agreement(of["agreement"]))]
    if of["waits"]:
        cells = [["method", "waits"], *([r["method"], str(r["waits"])] for r in of["waits"])]
        texts.append(("Steps that wait for the device", columns(cells)))
    for title, (bench, _) in _TABLES.items():
        if of[title]:
            own = {"compressor": "none", **measured, "rows": of[title]}
            texts.append((title, "\n\n".join(bench.tables(own))))
    return texts


def _of(measured: Measured, title: str) -> list[Row]:
    return [row for row in measured["rows"] if row["table"] == title]


def _agreement(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [["check", "relative distance", "agrees"]]
    cells += [
        [row["check"], f"{row['distance']:.1e}", "yes" if row["agrees"] else "NO"] for row in rows
    ]
    return columns(cells)


def _check_page(page: Path | None) -> None:
    """Raise `SettingError` for a page that cannot be written, before anything is measured."""
    if page is None:
        return
    try:
        with page.open("a", encoding="utf-8"):
            pass
    except OSError as wrong:
        raise SettingError("page", page, f"cannot be written: {one_line(wrong)}") from wrong
