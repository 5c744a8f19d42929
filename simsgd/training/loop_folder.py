"""Opens the folder of a loop that is recorded, and writes the settings that it has."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..config import Config
from ..given_object import PREFIX, plainly
from ..recipe import Recipe
from ..results.config_values import ON_RESUME, in_full, plain
from ..results.metric import NAMES, Metric, metric_of
from ..results.run import Run
from ..results.used_settings import Used
from ..settings import SettingError, require
from ..simulator.simulator import Simulator
from .checkpoint import checkpoint_errors, load_last
from .environment import environment
from .loop_state import Kept, State, check_saved
from .metrics import check_name
from .run_folder import RunFolder
from .used_settings import used_in_a_loop

_SAME = ("model", "tokens", *(f.name for f in dataclasses.fields(Recipe)))


def loop_config(folder: Path, simulator: Simulator, **settings: object) -> Config:
    """Return the settings of a loop: those of its simulator, and what `recording` was given."""
    require(folder.name != "", "folder", str(folder), "names no folder to make", "as runs/NAME")
    recipe = {f.name: getattr(simulator.recipe, f.name) for f in dataclasses.fields(Recipe)}
    parameter = next(iter(simulator.components.params.values()))
    metric = settings.pop("metric", None)
    if isinstance(metric, str) and metric not in NAMES:
        require(metric.isidentifier(), "metric", metric, "must be a name, as variables have")
        check_name(metric, metric)
        metric = f"object:{metric}"
    elif (mode := settings["metric_mode"]) is not None:
        raise SettingError("metric_mode", mode, "has no effect without a metric of one's own")
    return Config.of(
        {
            **recipe,
            **settings,
            "metric": metric,
            "model": f"object:{type(simulator.model).__name__}",
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": str(parameter.device),
            "name": folder.name,
            "runs_dir": folder.parent,
        }
    )


def metric_shown(config: Config) -> Metric:
    """Return what tables and figures show of a loop's evaluations."""
    return metric_of(config.plain())


def loop_folder(
    folder: Path, simulator: Simulator, config: Config, resume: bool, overwrite: bool
) -> tuple[RunFolder, bool]:
    """Return the folder, locked, and whether it holds a run that goes on.

    Raises `SettingError` for one that exists and is neither to be resumed nor to be overwritten,
    and for a run with other settings.
    """
    if not (resume and (folder / "config.json").is_file()):
        _require_new(folder, resume, overwrite)
        written = _written(simulator, config)
        with _named_folder(folder):
            return RunFolder.create(folder.parent, folder.name, written, overwrite), False
    with _named_folder(folder):
        opened = RunFolder.resume(folder)
    try:
        _require_same(folder, config, used_in_a_loop(simulator, config))
        steps = simulator.steps
        rule = f"has done {steps} steps already, and the run has its own"
        require(steps == 0, "simulator", None, rule, "give a new one")
    except SettingError:
        opened.close()
        raise
    return opened, True


def write_settings(
    folder: RunFolder, simulator: Simulator, config: Config, changed: Mapping[str, object]
) -> Config:
    """Change some settings, and write config.json."""
    changed_config = dataclasses.replace(config, **changed)  # type: ignore[arg-type]
    folder.write_config(_written(simulator, changed_config))
    return changed_config


def read_state(folder: RunFolder, simulator: Simulator, kept: Kept) -> State | None:
    """Give a simulator the state in a folder's checkpoint, and return the whole checkpoint.

    None if the run ended before its first. Rows that came after the checkpoint go. Raises
    `SettingError` if the checkpoint is of a loop that kept something else than `kept`.
    """
    state, warning = load_last(folder.folder)
    epoch = evaluated = 0
    if state is not None:
        with checkpoint_errors("resume", folder.folder):
            assert isinstance(state["loop"], dict)
            check_saved(state["loop"], kept)
            simulator.load_state_dict(state["simulator"])
            epoch, evaluated = int(state["epoch"]), int(state["evaluated"])
    if warning:
        folder.put_back()
        folder.log(warning)
    folder.truncate(simulator.steps, epoch, evaluated)
    return state


@contextmanager
def _named_folder(folder: Path) -> Iterator[None]:
    """Raise what is wrong with the parts of a folder's path as an error of `folder`."""
    try:
        yield
    except SettingError as wrong:
        value = wrong.value if wrong.name == "name" else str(folder)
        raise type(wrong)("folder", value, wrong.rule, wrong.fix) from wrong


def _require_new(folder: Path, resume: bool, overwrite: bool) -> None:
    """Raise `SettingError` for a folder that is there and is not to be replaced."""
    if not os.path.lexists(folder):
        return
    require(folder.is_dir(), "folder", str(folder), "is no folder", "name another")
    if overwrite:
        return
    fix = "name another" if resume else "overwrite=True replaces it, resume=True continues it"
    raise SettingError("folder", str(folder), "exists already", fix)


def _require_same(folder: Path, config: Config, used: Mapping[str, Used]) -> None:
    """Raise `SettingError` for a run that has other settings than now."""
    known, now = Run(folder).config, config.plain()
    Run(folder).evaluations  # noqa: B018, raises if they are damaged
    if not known.get("recorded"):
        fix = f"simsgd train --resume {folder} continues it"
        raise SettingError("folder", str(folder), "holds a run of `simsgd train`", fix)
    for name in _SAME:
        if name not in ON_RESUME and _named(known.get(name)) != _named(now[name]):
            rule = f"cannot change on resume, the run has {in_full(known.get(name))}"
            raise SettingError(name, in_full(now[name]), rule)
    before, criterion = Run(folder).used.get("criterion"), used["criterion"]
    rule = f"cannot change on resume, the run has {before}"
    require(before in (None, criterion), "criterion", criterion, rule)


def _named(value: object) -> object:
    """Return a setting's value, that of an object without the address it had in memory."""
    of_object = isinstance(value, str) and value.startswith(PREFIX)
    return plainly(str(value)) if of_object else plain(value)


def _written(simulator: Simulator, config: Config) -> dict[str, object]:
    used = used_in_a_loop(simulator, config)
    place = environment(config.device)
    return {**config.plain(), "recorded": True, "environment": place, "used": used}
