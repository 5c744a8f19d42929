"""The settings of many runs: every combination of some values, and a name for each.

A comma begins a new value unless what follows it is an argument, `name=value`, or it stands in
brackets: `none,qsgd:15,bucket=512` is the two values `none` and `qsgd:15,bucket=512`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config, default
from .settings import SettingError, require, unknown

OF_THE_MACHINE = {  # what a run may have other values of and be the same run
    "checkpoint_every", "data_dir", "device", "download", "log_every", "quiet",
    "tensorboard", "wandb",
}  # fmt: skip
OF_ONE_RUN = {"name", "overwrite", "resume", "runs_dir"}  # what a sweep decides by itself
_SPEAKING = {  # settings whose values say what they are
    "compressor", "dataset", "engine", "memory", "model", "model_config", "optimizer", "regime",
}  # fmt: skip
_LONGEST = 120  # characters of a name
Settings = dict[str, Any]


def values_of(text: str) -> list[str]:
    """Return the values in a text from the command line.

    >>> values_of("4,16"), values_of("topk:0.01,qsgd:15,bucket=512,none")
    (['4', '16'], ['topk:0.01', 'qsgd:15,bucket=512', 'none'])
    >>> values_of("depth=8,hidden=(64, 32)")
    ['depth=8,hidden=(64, 32)']
    """
    parts, depth = [""], 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        argument = re.match(r"\s*[A-Za-z_]\w*\s*=", text[place + 1 :])
        if letter == "," and depth <= 0 and not argument:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of some settings, each with every seed.

    Raises `SettingError` for an unknown setting, one that a sweep decides by itself, one without
    values, or a value that is there twice.
    """

    values: Mapping[str, Sequence[Any]]  # of each setting, in the order they are to vary
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        known = set(Config.__dataclass_fields__) - OF_ONE_RUN
        for name, values in self.values.items():
            if name not in known:
                raise unknown("setting", name, known)
            one = name not in OF_THE_MACHINE or len(values) == 1
            require(one, name, list(values), "takes one value in a sweep")
            _check(name, values)
        fix = "give the number of them with seeds, or the seeds themselves with seed"
        require("seed" not in self.values, "seed", None, "is counted apart", fix)
        _check("seed", self.seeds)

    @property
    def varying(self) -> list[str]:
        """The settings that have several values, the seed apart."""
        return [name for name, values in self.values.items() if len(values) > 1]

    def points(self) -> list[Settings]:
        """Return the settings of every combination, the first setting varying slowest."""
        names, values = list(self.values), list(self.values.values())
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*values)]

    def runs(self) -> list[Settings]:
        """Return the settings of every run: each combination with each seed."""
        return [{**point, "seed": seed} for point in self.points() for seed in self.seeds]

    def told(self, settings: Mapping[str, Any]) -> str:
        """Return what tells a combination from the others, as a person reads it.

        >>> Grid({"workers": [4, 16], "lr": [0.1]}).told({"workers": 4, "lr": 0.1})
        'workers=4'
        """
        named = (f"{name}={in_full(settings[name])}" for name in self.varying)
        return ", ".join(named) or "the only combination"


def identity(settings: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return what makes a run the run it is: all its settings but those of the machine."""
    given = {name: value for name, value in settings.items() if name not in OF_THE_MACHINE}
    return frozenset((n, repr(_plain(v))) for n, v in given.items() if _plain(v) != _usual(n))


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the settings of which not all have the same value; what is not given is default."""
    runs = list(settings)
    names = dict.fromkeys(name for run in runs for name in run)
    return [n for n in names if len({repr(_plain(run.get(n, _usual(n)))) for run in runs}) > 1]


def names_of(
    runs: Sequence[Settings], others: Sequence[Settings] = (), taken: Iterable[str] = ()
) -> list[str]:
    """Return a name for each run that tells what varies among these and others, the seed last.

    None of the names in `taken` is given.

    >>> names_of([{"workers": w, "compressor": "topk:0.01", "seed": 0} for w in (4, 16)])
    ['workers4-seed0', 'workers16-seed0']
    """
    varies = varying([*others, *runs])
    told = [name for name in varies if name not in {*OF_THE_MACHINE, "seed"}]
    used, found = set(taken), []
    for run in runs:
        words = [_word(n, run.get(n, _usual(n))) for n in told]
        name = "-".join([*words, f"seed{run['seed']}"])[-_LONGEST:].lstrip("-.")
        free = next(n for n in _numbered(name) if n not in used)
        used.add(free)
        found.append(free)
    return found


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


def _check(name: str, values: Sequence[Any]) -> None:
    require(len(values) > 0, name, None, "needs at least one value in a sweep")
    seen = [repr(_plain(value)) for value in values]
    twice = [value for value in values if seen.count(repr(_plain(value))) > 1]
    if twice:
        raise SettingError(name, twice[0], "stands there twice", "give each value once")


def _word(name: str, value: object) -> str:
    spelling = name.replace("_", "-")
    if value is None or value is False or value == "none":
        return f"no-{spelling}"
    if value is True:
        return spelling
    word = re.sub(r"[^A-Za-z0-9.+_]+", "-", in_short(value)).strip("-.")
    word = re.sub(r"\.{2,}", "-", word)
    return word if name in _SPEAKING else f"{spelling}{word}"


def _numbered(name: str) -> Iterable[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def _usual(name: str) -> Any:
    return _plain(default(name)) if name in Config.__dataclass_fields__ else None


def _plain(value: Any) -> Any:
    """Return a value that equals another where they mean the same: paths as text, 1.0 as 1."""
    if isinstance(value, Path):
        return str(value)
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value
