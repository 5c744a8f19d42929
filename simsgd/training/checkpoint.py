"""Reads the checkpoints of a run, and refuses damaged ones."""

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.folder_of_runs import refuse_folder_of_runs
from ..settings import SettingError, require, require_kind

if TYPE_CHECKING:
    from ..simulator.checkpoint_check import StateDict


@contextmanager
def checkpoint_errors(name: str, place: object) -> Iterator[None]:
    """Raise `SettingError` for a checkpoint that lacks parts, or has parts that do not fit."""
    try:
        yield
    except SettingError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as wrong:
        rule = f"holds a checkpoint with missing or broken parts ({type(wrong).__name__})"
        raise SettingError(name, str(place), rule, "train again, or take another") from wrong


FORMAT = "simsgd-run/1"


def load_checkpoint(path: Path | str, name: str = "resume") -> "StateDict":
    """Return the state that `RunFolder.save` wrote; a folder means its last.pt.

    Raises `SettingError` for a file that is missing, broken or not ours. No code in it is run.
    """
    import torch

    require_kind(name, path, str, Path)
    file = Path(path) / "last.pt" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        refuse_folder_of_runs(Path(path), name)
    require(file.is_file(), name, str(file), "names a file that does not exist")
    try:
        _require_undamaged(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a foreign file, which is refused below
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as wrong:  # torch.load has a dozen errors for a broken file
        raise SettingError(name, str(file), "cannot be read as a checkpoint") from wrong
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        rule = f"is not a checkpoint of simsgd (its format is not {FORMAT})"
        raise SettingError(name, str(file), rule, "give a run's folder, or the last.pt in it")
    return {key: value for key, value in state.items() if key != "format"}


def load_last(folder: Path) -> "tuple[StateDict | None, str]":
    """Return the state to continue from, and a warning if it is not that of last.pt.

    None where a run ended before its first checkpoint. A damaged or missing last.pt gives that of
    previous.pt. Raises `SettingError` if none can be read.
    """
    last, previous = folder / "last.pt", folder / "previous.pt"
    if not previous.is_file():
        return (load_checkpoint(last) if last.is_file() else None), ""
    try:
        return load_checkpoint(last), ""
    except SettingError as wrong:
        state = load_checkpoint(previous)
        older = f"continuing from {previous}, which is older"
        return state, f"warning: {wrong.sentence('last.pt')}; {older}"


def _require_undamaged(file: Path) -> None:
    """Raise if a checksum in the archive is wrong, which torch.load does not look at."""
    with zipfile.ZipFile(file) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(wrong)
