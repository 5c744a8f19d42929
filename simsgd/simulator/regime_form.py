"""Checks the form of a regime before anything of it is used: starts, functions, decay."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ..given_object import WITHOUT_ASYNC, is_async
from ..settings import SettingError, fits, one_line, quoted, require
from ..units import plain_numbers

_Form = TypeVar("_Form")
_NUMBERED = ("epoch", "step")
_TAKEN = ("(epoch)", "(epoch, step)", "(epoch, step, results)")
_FORMS = "write {0: {...}} by epoch, a list of phases, or a function"


def copied(form: _Form) -> _Form:
    """Return a copy, which does not change with the form.

    Raises `SettingError` for what cannot be copied, or is none of the forms of a regime.
    """
    if isinstance(form, type):
        raise SettingError("regime", None, f"is the class {form.__name__}", _FORMS)
    kinds = (Mapping, list, tuple)
    if form is not None and not isinstance(form, kinds) and not callable(form):
        raise SettingError("regime", None, f"is of type {type(form).__name__}", _FORMS)
    try:
        return cast(_Form, plain_numbers(copy.deepcopy(form)))
    except TypeError as wrong:
        raise SettingError("regime", None, f"cannot be copied: {one_line(wrong)}") from wrong


def check_structure(phase: Mapping[str, Any]) -> None:
    """Raise `SettingError` for a phase's start, function or decay that is none."""
    for key in _NUMBERED:
        start = phase.get(key, 0)
        holds = fits(start, [float]) and math.isfinite(start) and start >= 0
        require(holds, "regime", quoted(start), f"must have a number of at least 0 as {key}")
    for key, most in (("epoch_lambda", 3), ("step_lambda", 1)):
        function = phase.get(key)
        if function is not None and not callable(function):
            raise SettingError("regime", function, f"must have a function as {key}")
        if callable(function):
            check_function(function, most)
    for value in phase.values():
        if callable(value) and not isinstance(value, type):
            check_function(value, 3)
    _check_decay(phase)
    counts = sorted({"scheduler", "lr_decay_rate"} & phase.keys())
    rule = f"has {' and '.join(counts)} in a phase with epoch and step, whichever comes first"
    fix = "let it begin with one of them"
    require(not counts or not phase.keys() >= {*_NUMBERED}, "regime", None, rule, fix)


def called(
    function: Callable[..., object], epoch: float, step: int, results: Sequence[Mapping[str, float]]
) -> Any:
    """Return what a function of epoch, step and results gives, which may need but some of these."""
    return function(*(epoch, step, results)[: max(1, arguments_of(function))])


def arguments_of(function: Callable[..., object]) -> int:
    """Return how many arguments a function needs."""
    takes = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(takes)


def check_function(function: Callable[..., object], most: int = 3) -> None:
    """Raise `SettingError` for a function that needs more than `most` arguments, or takes none."""
    rule = f"has the async function {getattr(function, '__name__', type(function).__name__)}"
    require(not is_async(function), "regime", None, rule, WITHOUT_ASYNC)
    given = (0, 0, ())[:most]
    if not any(accepts(function, *given[:number]) for number in range(1, most + 1)):
        name = getattr(function, "__name__", type(function).__name__)
        takes = " or ".join(_TAKEN) if most > 1 else "(step)"
        rule = f"has a function {name}{inspect.signature(function)}"
        raise SettingError("regime", None, rule, f"take {takes}")


def accepts(function: Callable[..., object], *given: object) -> bool:
    """Return whether a function can be called with these arguments, or may be."""
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        return False
    except ValueError:  # of some functions written in C
        return True
    return True


def _check_decay(phase: Mapping[str, Any]) -> None:
    rate: Any = phase.get("lr_decay_rate")
    steps: Any = phase.get("lr_decay_steps")
    if rate is None and steps is None:
        return
    holds = fits(rate, [float]) and math.isfinite(rate) and rate >= 0
    require(holds, "regime", quoted(rate), "must have a number of at least 0 as lr_decay_rate")
    holds = fits(steps, [int]) and steps >= 1
    require(
        holds, "regime", quoted(steps), "must have a whole number of at least 1 as lr_decay_steps"
    )
    made = "lr" in phase or "step_lambda" in phase or "epoch_lambda" in phase
    require(made, "regime", None, "has lr_decay_rate in a phase without lr", "set lr there")
