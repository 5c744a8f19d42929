"""Every combination of some values of settings, each with every seed."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...config import Config
from ...results.config_values import (
    OF_ONE_RUN,
    OF_THE_MACHINE,
    in_full,
    plain,
)
from ...settings import SettingError, require, unknown

Settings = dict[str, object]
_MOST = 100_000  # runs of a sweep


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of some settings, each with every seed.

    Raises `SettingError` for an unknown setting, one that a sweep decides by itself, one without
    values, or a value that is there twice.
    """

    values: Mapping[str, Sequence[object]]  # of each setting, in the order they are to vary
    seeds: Sequence[object] = (0,)

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
        runs = math.prod(map(len, [*self.values.values(), self.seeds]))
        require(runs <= _MOST, "sweep", None, f"makes {runs:,} runs, and may make {_MOST:,}")
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

    def described(self, settings: Mapping[str, object]) -> str:
        """Return what tells a combination from the others, as a person reads it.

        >>> Grid({"workers": [4, 16], "lr": [0.1]}).described({"workers": 4, "lr": 0.1})
        'workers=4'
        """
        named = (f"{name}={in_full(settings[name])}" for name in self.varying)
        return ", ".join(named) or "the only combination"


def _check(name: str, values: Sequence[object]) -> None:
    require(len(values) > 0, name, None, "needs at least one value in a sweep")
    seen: set[str] = set()
    for value in values:
        text, empty = repr(plain(value)), value == ""
        rule, fix = "has an empty value in a sweep", "leave out a comma"
        require(not empty or text not in seen, name, None, rule, fix)
        require(text not in seen, name, value, "is given twice", "give each value once")
        seen.add(text)
