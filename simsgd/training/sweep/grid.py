"""The settings of many runs: every combination of some values, and a name for each.

A comma begins a new value unless what follows it is an argument, `name=value`, or it stands in
brackets: `none,qsgd:15,bucket=512` is the two values `none` and `qsgd:15,bucket=512`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config import Config
from ...config_values import (
    OF_ONE_RUN,
    OF_THE_MACHINE,
    default_of,
    in_full,
    in_short,
    plain,
    varying,
)
from ...settings import SettingError, require, unknown

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
            if name in OF_THE_MACHINE and len(values) != 1:
                rule, fix = "takes one value in a sweep", "it changes no number of a run"
                raise SettingError(name, list(values), rule, fix)
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
        words = [_word(n, run.get(n, default_of(n))) for n in told]
        name = "-".join([*words, f"seed{run['seed']}"])[-_LONGEST:].lstrip("-.")
        free = next(n for n in _numbered(name) if n not in used)
        used.add(free)
        found.append(free)
    return found


def _check(name: str, values: Sequence[Any]) -> None:
    require(len(values) > 0, name, None, "needs at least one value in a sweep")
    seen = [repr(plain(value)) for value in values]
    twice = [value for value in values if seen.count(repr(plain(value))) > 1]
    if twice:
        raise SettingError(name, twice[0], "is given twice", "give each value once")


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
