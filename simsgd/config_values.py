"""What values of settings are called in names, tables and figures."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .config import Config, default

OF_THE_MACHINE = {  # what a run may have other values of and be the same run
    "checkpoint_every", "data_dir", "device", "download", "log_every", "quiet",
    "tensorboard", "wandb",
}  # fmt: skip


OF_ONE_RUN = {"name", "overwrite", "resume", "runs_dir"}  # what a sweep decides by itself


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the settings of which not all have the same value; what is not given is default."""
    runs = list(settings)
    names = dict.fromkeys(name for run in runs for name in run)
    return [n for n in names if len({repr(plain(run.get(n, default_of(n)))) for run in runs}) > 1]


def in_full(value: object) -> str:
    """Return a setting's value as text: true, false and none in small letters.

    >>> in_full(True), in_full(None), in_full("./mine.py:Mine:5"), in_full(0.1)
    ('true', 'none', './mine.py:Mine:5', '0.1')
    """
    small = value is None or isinstance(value, bool)
    return str(value).lower() if small else str(value)


def in_short(value: object) -> str:
    """Return the same with files by their names alone.

    >>> in_short("/home/me/mine.py:Mine:5"), in_short(False)
    ('mine.py:Mine:5', 'false')
    """
    return re.sub(r"[^+]*/(?=[^/+]*\.py\b)", "", in_full(value))


def default_of(name: str) -> Any:
    """Return the default of a setting as JSON has it; None for what is no setting."""
    return plain(default(name)) if name in Config.__dataclass_fields__ else None


def plain(value: Any) -> Any:
    """Return a value that equals another where they mean the same: paths as text, 1.0 as 1."""
    if isinstance(value, Path):
        return str(value)
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value
