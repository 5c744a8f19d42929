"""Checkpoints of a run: read, and refused where they are damaged."""

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..settings import SettingError, require


@contextmanager
def telling_odd(name: str, place: object) -> Iterator[None]:
    """Tell in one line what goes wrong with a checkpoint that lacks its parts, or has odd ones."""
    try:
        yield
    except SettingError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as wrong:
        rule = f"holds a checkpoint without what is needed ({type(wrong).__name__})"
        raise SettingError(name, str(place), rule, "train anew, or take another") from wrong


FORMAT = "simsgd-run/1"


def load_checkpoint(path: Path | str, name: str = "resume") -> dict[str, Any]:
    """Return the state that `RunFolder.save` wrote; a folder means its last.pt.

    Raises `SettingError` for a file that is missing, broken or not ours. No code in it is run.
    """
    import torch

    file = Path(path) / "last.pt" if Path(path).is_dir() else Path(path)
    require(file.is_file(), name, str(file), "names a file that does not exist")
    try:
        _require_undamaged(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of a foreign file is told below
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as wrong:  # torch.load tells a broken file in a dozen ways
        raise SettingError(name, str(file), "cannot be read as a checkpoint") from wrong
    ours = isinstance(state, dict) and state.get("format") == FORMAT
    rule = f"is not a checkpoint of simsgd (its format is not {FORMAT})"
    require(ours, name, str(file), rule, "give a run's folder, or the last.pt in it")
    return {key: value for key, value in state.items() if key != "format"}


def load_last(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the state to go on from, and a warning if it is not that of last.pt.

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
        return state, f"warning: {wrong.told('last.pt')}; going on from {previous}, which is older"


def _require_undamaged(file: Path) -> None:
    """Raise if a checksum in the archive is wrong, which torch.load does not look at."""
    with zipfile.ZipFile(file) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(wrong)
