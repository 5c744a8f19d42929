"""Runs a sweep: skips what is done, and continues what stopped."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...given_object import plain_arguments, without_objects
from ...results.config_values import OF_THE_MACHINE, ON_RESUME, Identity, identity, plain
from ...results.sweep import (
    Sweep,
    part_done,
    read_definition,
    require_own,
    write_definition,
)
from ...settings import SettingError, require, require_kind
from ...units import plain_numbers
from ..command_line import refuse_of_command_line
from ..run_names import make_place, require_place
from ..signals import Interrupted, StopRequest, stop_requests
from .grid import Grid, Settings
from .launchers import Job, Launcher, launcher_of
from .progress import SweepProgress
from .run_names import names_of

_PAUSE = 0.2  # seconds between two looks at the runs
_PATIENCE = 60.0  # seconds for which a run waits for another process that still writes its folder


@plain_arguments
def sweep(
    *,
    runs_dir: Path | str | None = None,
    seeds: int | None = None,
    jobs: int | None = None,
    launcher: str | None = None,
    quiet: bool = False,
    **settings: object,
) -> Sweep:
    """Train with every combination of the values in `settings`, and return what came of it.

    `sweep(workers=[4, 16], compressor=["none", "topk:0.01"], seeds=3)` makes twelve runs. A list,
    tuple, array or Series is several values of a setting of `Config`, anything else is one.
    `seeds=3` means the seeds 0, 1 and 2; `seed=[5, 7]` names them. `jobs` runs go at a time, each a
    process; `launcher` is `local` or `slurm`, through submitit. `runs_dir` is the sweep's folder,
    by default `runs/sweep` with what varies.

    What is done there is not done again and what stopped goes on, so that a sweep may be stopped,
    repeated and widened. A combination that contradicts itself, or a run that fails, is told in
    `failures` of what is returned. Raises `SettingError` before the first run for a value that is
    wrong wherever it stands, and if no combination is sound; `Interrupted` after Ctrl-C.
    """
    require_kind("runs_dir", runs_dir, str, Path, type(None))
    refuse_of_command_line(settings)
    listed = {name: _listed(name, value) for name, value in settings.items()}
    grid = _grid(without_objects(listed), seeds)
    folder = Path("runs", "-".join(["sweep", *grid.varying])) if runs_dir is None else runs_dir
    folder = Path(folder)
    _require_place(folder)
    known = read_definition(folder)["runs"] if (folder / "sweep.json").exists() else {}
    with (
        contextlib.closing(launcher_of(launcher, jobs, folder)) as starts,
        stop_requests() as request,
        contextlib.closing(SweepProgress(quiet)) as progress,
    ):
        refused = _refused(grid, _done(folder, known), starts, request, progress)
        runs = _named(grid, refused, folder, known)
        _write(grid, folder, {**known, **runs})
        failed = RunQueue(folder, runs, starts, request, progress).work()
    left = Sweep(folder, {**{what: str(error) for what, error in refused.items()}, **failed})
    left.failures |= {name: why for name, why in left.unusable.items() if name in runs}
    left.write_table()
    if request.made:
        raise Interrupted(f"stopped; repeat the command to continue what is in {folder}")
    return left


@dataclass
class RunQueue:
    """Makes the runs of a sweep, some at a time."""

    folder: Path
    runs: Mapping[str, Settings]
    launcher: Launcher
    request: StopRequest
    progress: SweepProgress
    running: dict[str, Job] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    found_in_use: dict[str, float] = field(default_factory=dict)  # when each first was

    def work(self) -> dict[str, str]:
        """Make all runs that are not done, and return why some failed, by name."""
        parts = dict.fromkeys(self.runs, 0.0)
        for name, settings in self.runs.items():
            try:
                require_own(self.folder / name, settings)
                parts[name] = part_done(self.folder / name)
            except SettingError as wrong:
                self.failures[name] = str(wrong)
        self.waiting = [n for n, part in parts.items() if part < 1 and n not in self.failures]
        self.progress.begin(self.folder, parts)
        while (self.waiting or self.running) and not self.request.made:
            while self.waiting and len(self.running) < self.launcher.jobs:
                self._start(self.waiting.pop(0))
            time.sleep(_PAUSE)
            self._look()
        if self.request.made:
            self._stop()
        return self.failures

    def _start(self, name: str) -> None:
        folder, settings = self.folder / name, self.runs[name]
        if (folder / "config.json").is_file():
            changed = {key: settings[key] for key in settings.keys() & OF_THE_MACHINE & ON_RESUME}
            asked = {"resume": str(folder), **changed}
        else:
            asked = {"runs_dir": str(self.folder), "name": name, **settings}
            if folder.exists():  # killed before anything was in it
                asked["overwrite"] = True
        self.running[name] = self.launcher.start({**asked, "quiet": True})

    def _look(self) -> None:
        for name, job in list(self.running.items()):
            ending = job.ended()
            if ending is None:
                self.progress.show(name, part_done(self.folder / name))
                continue
            del self.running[name]
            if self.request.made and ending.code:
                continue
            if ending.in_use and self._may_wait(name):
                self.waiting.append(name)
                continue
            if ending.code:
                self.failures[name] = ending.reason
            try:
                self.progress.end(self.folder / name, ending)
            except SettingError as wrong:  # its tables were damaged before
                self.failures[name] = str(wrong)

    def _may_wait(self, name: str) -> bool:
        """Return whether a run may wait on for its folder, as for what a killed sweep left."""
        now = time.monotonic()
        return now - self.found_in_use.setdefault(name, now) < _PATIENCE

    def _stop(self) -> None:
        for job in self.running.values():
            job.stop()
        for job in self.running.values():
            job.wait()


def _listed(name: str, value: object) -> object:
    """Return an array, a Series or a range as a list. Raises `SettingError` for a set."""
    unordered, fix = isinstance(value, Set | Iterator), "give a list of values"
    require(not unordered, name, type(value).__name__, "is neither one value nor a list", fix)
    if isinstance(value, np.ndarray):
        return plain_numbers([*value])
    if isinstance(value, range):
        return [*value]
    return value.tolist() if hasattr(value, "tolist") else value


def _grid(settings: Mapping[str, object], seeds: int | None) -> Grid:
    values = {n: list(v) if isinstance(v, list | tuple) else [v] for n, v in settings.items()}
    own = values.pop("seed", None)
    fix = "give the number of them with seeds, or the seeds themselves with seed"
    require(own is None or seeds is None, "seed", None, "and seeds were both given", fix)
    require(seeds is None or seeds >= 1, "seeds", seeds, "must be at least 1")
    return Grid(values, range(seeds or 1) if own is None else own)


def _require_place(folder: Path) -> None:
    """Raise `SettingError` for a folder that cannot be made, or that is a run's."""
    is_run, fix = (folder / "config.json").exists(), "name another, or the one that holds it"
    require(not is_run, "runs_dir", str(folder), "is the folder of a run", fix)
    require_place(folder)


def _done(folder: Path, known: Mapping[str, Settings]) -> set[Identity]:
    """Return which of the known runs have nothing left to do, or cannot be gone on with."""
    return {identity(run) for name, run in known.items() if not _goes_on(folder / name)}


def _goes_on(folder: Path) -> bool:
    try:
        return part_done(folder) < 1
    except SettingError:  # it is damaged, as is told later
        return False


def _refused(
    grid: Grid,
    done: set[Identity],
    launcher: Launcher,
    request: StopRequest,
    progress: SweepProgress,
) -> dict[str, SettingError]:
    """Return what is wrong with which combinations, of those that have a run to be made."""
    points = [
        point
        for point in grid.points()
        if any(identity({**point, "seed": seed}) not in done for seed in grid.seeds)
    ]
    refused = {}
    for number, point in enumerate(points):
        progress.check(number, len(points))
        error = launcher.check(point, request)
        if error is not None:
            refused[grid.described(point)] = error
        if request.made:
            break
    if refused and len(refused) == len(grid.points()):
        raise next(iter(refused.values()))
    _require_values(grid, refused)
    for combination, error in refused.items():
        progress.write(f"left out: {combination}: {error}")
    return refused


def _require_values(grid: Grid, refused: Mapping[str, SettingError]) -> None:
    """Raise `SettingError` for a value that is wrong by itself in all combinations with it."""
    for name in grid.varying:
        for value in grid.values[name]:
            errors = [
                refused.get(grid.described(point))
                for point in grid.points()
                if point[name] is value  # nan is not equal to itself
            ]
            own = [error for error in errors if error and error.name == name]
            if len(own) == len(errors) and _names(own[0], value):
                raise own[0]


def _names(error: SettingError, value: object) -> bool:
    """Return whether an error is about a value, or about a part of its text, as a file's name."""
    told = str(error.value).strip("'")
    return told != "" and any(told in str(own) for own in (value, plain(value)))


def _named(
    grid: Grid, refused: Mapping[str, object], folder: Path, known: Mapping[str, Settings]
) -> dict[str, Settings]:
    """Return the runs of the grid by their names: those that they have, else new ones."""
    names = {identity(run): name for name, run in known.items()}
    runs = [run for run in grid.runs() if grid.described(run) not in refused]
    new = [run for run in runs if identity(run) not in names]
    taken = {*known, *(path.name for path in folder.glob("*"))}
    fresh = names_of(new, [*known.values(), *grid.runs()], taken)
    names |= {identity(run): name for run, name in zip(new, fresh, strict=True)}
    return {names[identity(run)]: run for run in runs}


def _write(grid: Grid, folder: Path, runs: Mapping[str, Settings]) -> None:
    make_place(folder)
    asked = {**{n: list(v) for n, v in grid.values.items()}, "seed": list(grid.seeds)}
    write_definition(folder, asked, runs)
