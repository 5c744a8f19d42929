"""Names run folders, makes them, and removes those that a new run may overwrite."""

import errno
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..settings import SettingError, require
from ..units import module_name
from .folder_lock import FolderLock, empty

_LONGEST_SPEC = 40  # characters of a method, algorithm or compressor
_OF_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)  # what is wrong with a name itself


def default_name(config: Mapping[str, object], runs_dir: Path | None = None) -> str:
    """Return date and recipe, `20261127-231500-lenet-mnist5k-w16-choco-topk-0.01`.

    The recipe has the method, the algorithm unless it is allreduce, and what is pruned or else the
    compressor, each as far as it is given. With `runs_dir`, the name is one that no run there has.
    """
    model = PurePosixPath(str(config["model"]))
    recipe = [
        module_name(str(model)) if model.suffix == ".py" else model.name.removeprefix("object:"),
        _dataset_name(str(config["dataset"])),
        f"w{config['workers']}",
    ]
    recipe += [_spec(config.get(name)) for name in ("method", "algorithm")]
    prune = config.get("prune")
    recipe.append(_spec(config.get("compressor")) if prune is None else f"prune{prune}")
    name = "-".join([f"{datetime.now():%Y%m%d-%H%M%S}", *filter(None, recipe)])
    name = re.sub(r"\.{2,}|[^A-Za-z0-9.+_-]+", "_", name)
    return name if runs_dir is None else _untaken(Path(runs_dir), name)


def _dataset_name(dataset: str) -> str:
    if ".py" in dataset:
        return PurePosixPath(dataset.partition(".py")[0]).name
    return dataset.removeprefix("object:").partition(":")[0]


def _spec(value: object) -> str:
    """Return a method, algorithm or compressor in a name: `topk-0.01+sign`, `Mine` of a file."""
    if value in (None, "none", "allreduce"):
        return ""
    spec = re.sub(r"[^,+]*\.py:", "", str(value).removeprefix("object:"))
    return re.sub(r"[^A-Za-z0-9.+_]+", "-", spec).strip("-.")[:_LONGEST_SPEC]


def make_folder(runs_dir: Path, name: str, overwrite: bool = False) -> FolderLock:
    """Make RUNS_DIR/NAME, or empty it with `overwrite`, and return the lock on it.

    Raises `SettingError` for a name that exists (unless `overwrite`), is not a plain name, or is
    that of a run which another process is writing.
    """
    _require_plain(name)
    folder = Path(runs_dir) / name
    exists = overwrite and os.path.lexists(folder)
    if exists:
        _require_run(folder, name)
    else:
        _make(folder, name)
    lock = FolderLock.of(folder, "name", name)
    if exists:
        empty(folder)
    return lock


def require_place(folder: Path) -> None:
    """Raise `SettingError` for a folder of runs in whose way another file lies."""
    try:
        whole = folder.absolute()
    except OSError as wrong:  # the working directory was removed
        raise _not_made(folder, wrong) from wrong
    there = next(place for place in (whole, *whole.parents) if os.path.lexists(place))
    require(there.is_dir(), "runs_dir", str(folder), f"cannot be made ({there} is no folder)")


def make_place(folder: Path) -> None:
    """Make a folder of runs, unless it is there. Raises `SettingError` if it cannot be made."""
    require_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise _not_made(folder, wrong) from wrong


def working_folder() -> Path | None:
    """Return the folder in which this process works; None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def places_from(began: Path | None, **places: Path | None) -> dict[str, Path | None]:
    """Return paths as they are, or as seen from `began` if a user's code has left that folder."""
    if began is None or working_folder() == began:
        return places
    return {name: None if path is None else began / path for name, path in places.items()}


def missing_above(folder: Path) -> list[Path]:
    """Return the folders above one that are still to be made, the nearest first."""
    return [place for place in folder.parents if not os.path.lexists(place)]


def _untaken(runs_dir: Path, name: str) -> str:
    free, number = name, 1
    while os.path.lexists(runs_dir / free):
        number += 1
        free = f"{name}-{number}"
    return free


def _require_plain(name: str) -> None:
    one_part = PurePosixPath(name).name == PureWindowsPath(name).name == name
    bare = name.strip() == name
    if not (one_part and name and bare and ".." not in name and name.isprintable()):
        rule = "must be one folder's name, of printable characters, without / or .."
        rule += "" if bare else " or spaces around it"
        raise SettingError("name", name, rule)


def _make(folder: Path, name: str) -> None:
    new = missing_above(folder)
    make_place(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError as wrong:
        fix = f"--overwrite replaces it, --resume {folder} continues it"
        raise SettingError("name", name, f"exists already in {folder.parent}", fix) from wrong
    except OSError as wrong:
        for place in new:
            place.rmdir()
        if wrong.errno not in _OF_NAMES:
            rule = f"cannot hold a run ({wrong.strerror})"
            raise SettingError("runs_dir", str(folder.parent), rule) from wrong
        rule = f"cannot be the name of a folder ({wrong.strerror})"
        raise SettingError("name", name, rule) from wrong


def _not_made(folder: Path, wrong: OSError) -> SettingError:
    return SettingError("runs_dir", str(folder), f"cannot be made ({wrong.strerror})")


def _require_run(folder: Path, name: str) -> None:
    """Raise `SettingError` for a folder that holds anything but a run."""
    names = {path.name for path in folder.glob("*")} if folder.is_dir() else {"a file"}
    killed_at_once = names <= {".config.json.part", ".lock"}
    is_run = (folder / "config.json").is_file() or killed_at_once
    if folder.is_symlink() or not is_run:
        rule = f"cannot be overwritten, {folder} is not a run folder (no config.json in it)"
        raise SettingError("name", name, rule, "choose another name")
