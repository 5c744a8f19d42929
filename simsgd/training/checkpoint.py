"""Reads the checkpoints of a run, and refuses damaged ones."""

import operator
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Config
from ..given_object import PREFIX
from ..results.config_values import OF_ONE_RUN, OF_THE_MACHINE, ON_RESUME, in_full, plain
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
        lacks = isinstance(wrong, KeyError) and wrong.args and isinstance(wrong.args[0], str)
        parts = f"without {wrong.args[0]}" if lacks else "with missing or broken parts"
        rule = f"holds a checkpoint {parts}"
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
    rule = "is no file" if file.exists() else "names a file that does not exist"
    require(file.is_file(), name, str(file), rule)
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


def load_last(folder: Path, config: Config | None = None) -> "tuple[StateDict | None, str]":
    """Return the state to continue from, and a warning if it is not that of last.pt.

    None where a run ended before its first checkpoint, with a note. A damaged or missing last.pt
    gives that of previous.pt. Raises `SettingError` if none can be read, and if it is of a run with
    other settings than those of `config`.
    """
    state, warning = _last(folder)
    if state is not None and config is not None:
        with checkpoint_errors("resume", folder):
            _require_same(config.plain(), state["config"])
    return state, warning


def epoch_and_batch(state: "StateDict", batches: int) -> tuple[int, int]:
    """Return the epoch that goes on, and how many of its batches are done.

    Raises `SettingError` if the simulator of the same state has done another number of steps.
    """
    epoch, batch = map(operator.index, (state["epoch"], state["batch"]))
    steps = state["simulator"]["steps"]
    rule = f"says epoch {epoch}, batch {batch} of {batches}, and has done {steps} steps"
    right = 0 <= batch <= batches and epoch >= 0 and epoch * batches + batch == steps
    require(right, "checkpoint", None, rule, "train again, or take another")
    return epoch, batch


def require_vocabulary(name: str, place: object, state: "StateDict", digest: str | None) -> None:
    """Raise `SettingError` if a text has other tokens, or in another order, than it had.

    A model knows them by number. None: the data are no text.
    """
    before = state.get("vocabulary")
    rule = "was trained on other words: its text, or the file that it came from, has changed"
    same = None in (before, digest) or before == digest
    require(same, name, str(place), rule, "put the text back, or train again")


def _require_same(now: Mapping[str, object], before: Mapping[str, object]) -> None:
    """Raise `SettingError` for settings that a resumed run cannot have changed.

    What was an object in Python is given again, and may have another name.
    """
    for name in sorted((now.keys() & before.keys()) - ON_RESUME - OF_THE_MACHINE - OF_ONE_RUN):
        pair = plain(now[name]), plain(before[name])
        if pair[0] != pair[1] and not any(str(value).startswith(PREFIX) for value in pair):
            rule = f"is not what the checkpoint was trained with, {in_full(pair[1])}"
            raise SettingError(name, in_full(pair[0]), rule, "put it back into config.json")


def _last(folder: Path) -> "tuple[StateDict | None, str]":
    """Return the state of last.pt, else of previous.pt with a warning."""
    last, previous = folder / "last.pt", folder / "previous.pt"
    if not previous.is_file():
        return (load_checkpoint(last), "") if last.is_file() else (None, _begun_again(folder))
    try:
        return load_checkpoint(last), ""
    except SettingError as wrong:
        state = load_checkpoint(previous)
        older = f"continuing from {previous}, which is older"
        return state, f"warning: {wrong.sentence('last.pt')}; {older}"


def _begun_again(folder: Path) -> str:
    """Return what to say of a run without a checkpoint: a note if it had begun.

    Raises `SettingError` if it had one: each epoch but the last was followed by one.
    """
    rule, fix = "has lost its checkpoints, last.pt and previous.pt", "train it again with overwrite"
    require(_num_rows(folder / "epochs.csv") < 2, "resume", str(folder), rule, fix)
    has_begun = _num_rows(folder / "steps.csv") > 0
    return "note: there is no checkpoint, so that the run begins again" if has_begun else ""


def _num_rows(table: Path) -> int:
    """Return how many rows stand in a table, 0 if it is not there."""
    if not table.is_file():
        return 0
    with table.open("rb") as lines:
        return max(0, sum(1 for _ in lines) - 1)


def _require_undamaged(file: Path) -> None:
    """Raise if a checksum in the archive is wrong, which torch.load does not look at."""
    with zipfile.ZipFile(file) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(wrong)
