"""Tells which settings identify a run, and what their values are called in names and tables."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..config import Config, default
from ..recipe_rules import whole_spec
from ..settings import Scope, SettingError

# Keys of config.json that are no settings.
RECORDS = frozenset({"environment", "recorded", "used", "verified_steps"})

# Settings from which the bytes of a step follow, as the help of `simsgd bytes` has them.
OF_BYTES = (
    "model", "model_config", "dtype", "workers", "batch_size", "global_batch_size", "accumulate",
    "cluster",
    "prune", "compressor", "compress_layers", "granularity", "compress_if", "prune_1d",
    "value_dtype", "index_dtype", "method", "algorithm", "aggregate", "downlink", "collective",
    "topology", "local_steps", "participation", "clients", "seed",
)  # fmt: skip

Identity = frozenset[tuple[str, str]]  # names of settings, and their values as text


def with_scope(scope: Scope) -> frozenset[str]:
    """Return the settings of a scope.

    >>> sorted(with_scope("run"))
    ['name', 'overwrite', 'resume', 'runs_dir']
    """
    return _where("scope", scope)


def _where(key: str, value: object) -> frozenset[str]:
    fields = Config.__dataclass_fields__
    return frozenset(name for name, f in fields.items() if f.metadata[key] == value)


OF_THE_MACHINE = with_scope("machine")  # a run may have other values of them and be the same run
OF_ONE_RUN = with_scope("run")  # a sweep decides them by itself
ON_RESUME = _where("on_resume", True)  # a resumed run may have other values of them
PER_RANK = _where("per_rank", True)  # each rank may have its own values of them


def refuse_idle(
    given: Mapping[str, object], used: Iterable[str], what: str, fix: str = "leave it out"
) -> None:
    """Raise `SettingError` for a setting that was given and has no effect on `what`.

    One that has its default is as good as none.
    """
    known = {*used}
    for name, value in given.items():
        if name in known or plain(value) == default_of(name):
            continue
        told = None if value is True else value
        raise SettingError(name, told, f"has no effect on {what}", fix)


def identity(settings: Mapping[str, object]) -> Identity:
    """Return what makes a run the run it is: the settings that are not the default.

    Those of the machine and of the run's folder do not count, nor does what is no setting.
    """
    apart = OF_THE_MACHINE | OF_ONE_RUN | RECORDS
    given = {name: plain(value) for name, value in settings.items() if name not in apart}
    return frozenset((n, repr(value)) for n, value in given.items() if value != default_of(n))


def varying(settings: Iterable[Mapping[str, object]]) -> list[str]:
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

    >>> in_short("/home/me/mine.py:Mine:5"), in_short("libsvm:/data/a9a"), in_short(False)
    ('mine.py:Mine:5', 'libsvm:a9a', 'false')
    """
    text = re.sub(r"^(text|libsvm|imagefolder):.*/(?=.)", r"\1:", in_full(value))
    return re.sub(r"""[^+=,"]*/(?=[^/+]*\.py\b)""", "", text)


def default_of(name: str) -> object:
    """Return the default of a setting as JSON has it; None for what is no setting."""
    return plain(default(name)) if name in Config.__dataclass_fields__ else None


def plain(value: object) -> object:
    """Return a value that equals another where they mean the same: paths as text, 1.0 as 1."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):  # earlier versions kept some paths as they were typed
        return whole_spec(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
