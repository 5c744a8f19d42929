"""Finds the phases of a schedule: which value each setting has from which epoch or step on.

A value that changes more often than anyone would read, or that depends on results which nobody has
before the run, is described in words.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..results.tables import EPOCH_COLUMNS
from ..results.used_settings import Phase, Plain, Used
from ..settings import SettingError

Values = dict[str, Plain]
Results = Sequence[dict[str, float]]  # of the epochs that ended
_MOST_PHASES = 24  # of one setting
_MOST_LOOKS = 400  # epochs that are looked at, of many
_MOST_RESULTS = 2000  # epochs whose results a schedule is shown, of many


@dataclass
class Timeline:
    """The values that settings have over the steps of a run."""

    values_at: Callable[[int, int, Results], Values]  # of (epoch, steps done, results)
    steps: int  # of the run
    batches: int  # of an epoch
    _seen: dict[tuple[int, bool], Values] = field(default_factory=dict)

    def phases(self) -> dict[str, Used]:
        """Return the value of each setting, a list of phases where it changes."""
        every = max(1, self.steps // self.batches // _MOST_LOOKS) * self.batches
        looks = [*dict.fromkeys([*range(0, self.steps, every), self.steps - 1])]
        names = dict.fromkeys(name for step in looks for name in self._at(step))
        return {name: self._used(name, looks) for name in names}

    def _used(self, name: str, looks: Sequence[int]) -> Used:
        first = self._value(name, 0)
        if not all(self._at(step) and self._at(step, better=True) for step in looks):
            return f"{_short(first)} at first, then as a function gives it"
        if any(self._value(name, s) != self._value(name, s, better=True) for s in looks):
            return f"{_short(first)} at first, then by the results of epochs"
        phases: list[Phase] = [{"from": "start", "value": first}]
        for before, after in itertools.pairwise(looks):
            for step in self._changes(name, before, after):
                if len(phases) == _MOST_PHASES:
                    return self._in_words([self._value(name, step) for step in looks])
                phases.append({"from": self._place(step), "value": self._value(name, step)})
        return phases if len(phases) > 1 else first

    def _changes(self, name: str, before: int, after: int) -> Iterator[int]:
        """Yield the steps in (before, after] from which on the setting has another value."""
        if self._value(name, before) == self._value(name, after):
            return
        if after - before == 1:
            yield after
            return
        middle = (before + after) // 2
        yield from self._changes(name, before, middle)
        yield from self._changes(name, middle, after)

    def _in_words(self, values: Sequence[Plain]) -> str:
        text = f"{_short(values[0])} at first, {_short(values[-1])} at the end"
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) < len(values):
            return text
        return f"{text}, in between from {_short(min(numbers))} to {_short(max(numbers))}"

    def _place(self, step: int) -> str:
        epoch, rest = divmod(step, self.batches)
        return f"step {step}" if rest else f"epoch {epoch}"

    def _value(self, name: str, step: int, better: bool = False) -> Plain:
        return self._at(step, better).get(name)

    def _at(self, step: int, better: bool = False) -> Values:
        """Return the values at a step if results never improved, or always; empty if unknown."""
        if (step, better) not in self._seen:
            epoch = step // self.batches
            try:
                values = self.values_at(epoch, step, _invented(epoch, better))
            except SettingError as wrong:
                if wrong.name == "scheduler":
                    raise
                values = {}
            except Exception:  # whatever a user's function raises far from where the run is
                values = {}
            self._seen[step, better] = values
        return self._seen[step, better]


def _invented(epochs: int, better: bool) -> Results:
    """Return results of so many epochs, the last of many, to see whether a schedule looks."""
    last = range(max(0, epochs - _MOST_RESULTS), epochs)
    return [_result(epoch, better) for epoch in last]


@lru_cache(maxsize=4 * _MOST_RESULTS)  # neighbors are shown nearly the same ones
def _result(epoch: int, better: bool) -> dict[str, float]:
    measures = [name for name in EPOCH_COLUMNS if name.startswith(("train_", "val_"))]
    return dict.fromkeys(measures, 1 / (epoch + 1) if better else 1.0 + epoch)


def _short(value: Plain) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
