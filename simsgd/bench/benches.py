"""Lists the benches by name and runs one. Imports torch only when one is run."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..given_object import plain_arguments
from ..results.text_table import TextPage, TextTable
from ..settings import require_kind, unknown
from .figures import DRAWINGS, check_suffix
from .tables import DISPENSABLE, Measured, Row, heading


@dataclass(frozen=True)
class Bench:
    """A bench: a module of this package with `measure(**settings)` and `tables(measured)`."""

    about: str
    settings: tuple[str, ...]  # that it takes, `plot` where it can be drawn


BENCHES = {
    "compressors": Bench(
        "Time every compressor beside one read and one write of the same memory.",
        ("quick", "device", "compressors"),
    ),
    "engines": Bench(
        "Time every engine beside one plain large batch.",
        ("quick", "device", "model", "workers", "batch"),
    ),
    "auto": Bench(
        "Time the engine that auto chooses beside all others, on ten common networks.",
        ("quick", "device", "model", "workers", "batch", "threads", "own_models"),
    ),
    "step": Bench(
        "Time a whole training step beside plain SGD, a loop over workers, and real processes.",
        ("quick", "device", "model", "workers", "batch", "processes", "plot"),
    ),
    "algorithms": Bench(
        "Time a training step of every algorithm beside one of allreduce.",
        ("quick", "device", "model", "workers", "compressor"),
    ),
    "scaling": Bench(
        "Time a training step over workers at a fixed global batch, and over parameters.",
        ("quick", "device", "workers", "plot"),
    ),
    "threads": Bench(
        "Time a training step on one thread, all and auto, on idle cores and on busy ones.",
        ("quick", "model", "workers", "batch"),
    ),
    "kernels": Bench(
        "Count the kernels and the waits of a step of every method beside a plain step.",
        ("quick", "model", "workers", "plan"),
    ),
    "device": Bench(
        "Check a device against the CPU and measure all tables on it, in at most eight minutes.",
        ("quick", "device", "page"),
    ),
    "network": Bench(
        "Time every collective behind links of a known rate beside its price; as root on Linux.",
        ("quick", "workers", "link"),
    ),
    "data": Bench("Time the data of a batch beside its training step.", ("quick", "device")),
}
_SEVERAL = {  # settings of which there may be several, and their kind
    "model": str, "workers": int, "batch": int, "link": str, "compressors": str, "threads": int,
}  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """What a bench measured."""

    bench: str
    measured: Measured

    @property
    def rows(self) -> list[Row]:
        """One row for each thing that was timed."""
        return self.measured["rows"]

    def plain(self) -> Measured:
        """Return everything as JSON takes it."""
        return self.measured

    def page(self) -> TextPage:
        """Return the machine and the tables, for a terminal."""
        tables: list[str | TextTable] = _module(self.bench).tables(self.measured)
        where, notes = heading(self.measured["machine"]), self.measured.get("notes", [])
        return TextPage([where, *tables, *notes], DISPENSABLE)

    def summary(self) -> str:
        """Return the machine and the tables as text."""
        return str(self.page())


@plain_arguments
def bench(name: str, plot: Path | str | None = None, **settings: object) -> Measurement:
    """Measure how fast things run on this machine, and return the rows.

    `name` is compressors, engines, auto, step, algorithms, scaling, threads, kernels, device,
    network or data; `settings` are those of the command: `model`, `workers`, `batch`, `threads`,
    `link` and `compressors` may be several. `plot` is a figure to write, of step and scaling.
    Raises `SettingError` for whatever does not exist.
    """
    require_kind("bench", name, str)
    if name not in BENCHES:
        raise unknown("bench", name, BENCHES)
    given = settings if plot is None else {**settings, "plot": plot}
    for setting in given.keys() - set(BENCHES[name].settings):
        raise unknown("setting", setting, BENCHES[name].settings)
    require_kind("plot", plot, str, Path, type(None))
    path = None if plot is None else Path(plot)
    check_suffix(path)
    for setting in _SEVERAL.keys() & settings.keys():
        value = settings[setting]
        several = value if isinstance(value, list | tuple | range) else [value]
        for each in several:
            require_kind(setting, each, _SEVERAL[setting])
        settings[setting] = several
    measured: Measured = plain_arguments(_module(name).measure)(**settings)
    if path is not None:
        DRAWINGS[name](measured["rows"], path)
    return Measurement(name, measured)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f".{name}", __package__)
