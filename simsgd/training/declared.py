"""Checks what a model's or a regime's file declares, and tries a regime before a run begins."""

from collections.abc import Mapping
from typing import NoReturn

from ..given_object import WITHOUT_ASYNC, is_async
from ..settings import SettingError, quoted, require, shown
from ..simulator.optimizer_class import optimizer_arguments, taken_by_any
from ..simulator.parameter_groups import Settings
from ..simulator.regime import Regime

_SCALES = ("sqrt", "linear", "none")
_TRIED = 1000  # epochs


def check_declared(declared: Mapping[str, object], setting: str, file: str) -> None:
    """Raise `SettingError` for a length, a batch or a rule of another kind than it must be.

    `setting` is "model" or "regime", whichever named the `file`.
    """

    def refuse(key: str, what: str) -> NoReturn:
        rule = f"declares {key} = {shown(quoted(declared[key]))}, which is {what}"
        raise SettingError(setting, file, rule)

    for key, what in (("epochs", "a whole number"), ("batch", "a whole number of samples")):
        value = declared[key]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value is not None and not whole:
            refuse(key, f"not {what} of at least 1")
    schedule, rule = declared["schedule"], declared["scale_lr"]
    if schedule is not None and not callable(schedule):
        refuse("schedule", "no function")
    if is_async(schedule):
        refuse("schedule", f"an async function; {WITHOUT_ASYNC}")
    if rule is not None and rule not in _SCALES:
        refuse("scale_lr", "none of sqrt, linear and none")
    if not isinstance(declared["scale_epochs"], bool | None):
        refuse("scale_epochs", "neither true nor false")


def check_one_schedule(place: object, setting: str, file: str) -> None:
    """Raise `SettingError` for a file or a network that has two that say what holds when."""
    both = None not in (getattr(place, name, None) for name in ("regime", "schedule"))
    fix = "leave one out: a schedule takes the place of a regime"
    require(not both, setting, file, "defines both regime and schedule", fix)


def found_in_file(wrong: SettingError, setting: str, file: object) -> SettingError:
    """Return an error as one of the `file` that has the wrong value, which a `setting` named."""
    got = "" if wrong.value is None else f": {shown(wrong.value)}"
    rule = f'has "{wrong.name}"{got}, which {wrong.rule}'
    return SettingError(setting, file, rule, wrong.fix)


def try_epochs(regime: Regime, epochs: int, batches: int) -> None:
    """Raise `SettingError` for a regime that gives no settings in one of the first 1,000 epochs.

    So it does for what none of its optimizers take. A regime that follows results is not tried:
    there are none yet.
    """
    if regime.follows_results:
        return
    settings: dict[str, object] = {}
    optimizers: set[str] = set()
    for epoch in range(min(epochs, _TRIED)):
        there = regime.at(epoch, epoch * batches)
        settings.update(there)
        named = [there.get("optimizer", "SGD"), *(g.get("optimizer") for g in _groups(there))]
        optimizers |= {str(name) for name in named if name is not None}
    taken = frozenset[str]().union(*map(optimizer_arguments, optimizers))
    for key in settings.keys() & taken_by_any() - taken:
        rule = f"sets {key}, which is taken by none of its optimizers, {', '.join(optimizers)}"
        raise SettingError("regime", settings[key], rule, "leave it out")


def _groups(settings: Settings) -> list[Mapping[str, object]]:
    return [group.options for group in settings.get("param_groups", ())]
