"""What Python gives: numbers of numpy's, objects where a setting has a name, and their classes.

The object goes wherever the name goes, as a text that carries it. What is written down is the text
alone, which nobody can make the object of again.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import NoReturn, ParamSpec, TypeVar, get_args

from .settings import SettingError, quoted, require, require_kind, shown
from .units import plain_numbers, with_names

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_COUNTS = (int, bool, type(None))  # annotations that a value is held to
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

PREFIX = "object:"  # begins the text, in config.json too
WITHOUT_ASYNC = "write def without async"  # of a function whose value is needed at once

NAMES = (  # of settings that Python may give objects for
    "compressor", "compress_layers", "memory", "algorithm", "downlink", "aggregate",
    "outer_optimizer", "optimizer", "scheduler", "param_groups",
)  # fmt: skip

_FILES = {  # of what has objects in `train` alone: how a file names it
    "model": "./mine.py", "dataset": "./data.py", "criterion": "./loss.py", "metric": "./metric.py",
}  # fmt: skip


def plain_arguments(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
    """Return a function that takes numpy's numbers as Python's: see `plain_numbers`.

    It raises `SettingError` for what is no whole number, or neither true nor false, where that is
    annotated.
    """
    parameters = inspect.signature(function).parameters.values()
    annotated = {p.name: p.annotation for p in parameters}
    kinds = {n: get_args(k) if isinstance(k, UnionType) else (k,) for n, k in annotated.items()}
    counts = {n: own for n, own in kinds.items() if all(kind in _COUNTS for kind in own)}
    placed = [p.name for p in parameters if p.kind in _BY_PLACE]

    @functools.wraps(function)
    def called(*args: _P.args, **named: _P.kwargs) -> _Result:
        plain, plain_named = [plain_numbers(value) for value in args], plain_numbers(named)
        for name, value in {**dict(zip(placed, plain, strict=False)), **plain_named}.items():
            if name in counts:
                require_kind(name, value, *counts[name])
        return function(*plain, **plain_named)

    return called


def with_objects(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings in which a text stands for each object."""
    return {
        name: _as_text(name, value) if name in NAMES else value for name, value in settings.items()
    }


def _as_text(name: str, value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if name in ("param_groups", "compress_layers"):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):  # it has functions or objects
            return GivenObject.of(value)
    return GivenObject.of(value)


class GivenObject(str):
    """The text that stands for an object, and the object."""

    __slots__ = ("value",)
    value: object

    def __new__(cls, text: str, value: object = None) -> "GivenObject":
        """Return `text` with the object that it stands for."""
        made = super().__new__(cls, text)
        made.value = value
        return made

    @classmethod
    def of(cls, value: object) -> "GivenObject":
        """Return an object with a text: the settings of a dataclass, or the name of its class."""
        if isinstance(value, GivenObject):
            return value
        if isinstance(value, list | tuple):
            names = (cls.of(part).removeprefix(PREFIX) for part in value)
            return cls(PREFIX + ("+".join(names) or type(value).__name__), value)
        if isinstance(value, Mapping):
            return cls(
                PREFIX + ",".join(f"{key}={_in_words(own)}" for key, own in value.items()), value
            )
        named = getattr(value, "__name__", type(value).__name__).strip("<>")
        described = is_dataclass(value) and not isinstance(value, type)
        text = repr(value) if described else named
        return cls(PREFIX + " ".join(text.split()), value)

    def __deepcopy__(self, memo: object) -> "GivenObject":
        return self


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else GivenObject.of(value).removeprefix(PREFIX)


def without_objects(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a sweep, with a text for each dict of compressors by layer.

    Raises `SettingError` for an object among the values.
    """
    settings, layers = dict(settings), settings.get("compress_layers")
    if isinstance(layers, Mapping | list | tuple):
        several = [layers] if isinstance(layers, Mapping) else layers
        settings["compress_layers"] = [_as_text("compress_layers", each) for each in several]
    for name in (*NAMES, *_FILES):
        given = settings.get(name)
        for value in given if isinstance(given, list | tuple) else [given]:
            made = value is None or isinstance(value, str)
            if not made or isinstance(value, GivenObject):
                rule = "is an object, which the processes of a sweep cannot make again"
                fix = f"name it, as in {_FILES.get(name, './mine.py:Mine')}, or call train for each"
                raise SettingError(name, GivenObject.of(value), rule, fix)
    return settings


def plainly(text: str) -> str:
    """Return a setting's text as a message has it, that of an object without its prefix."""
    return with_names(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else text


def is_async(function: object) -> bool:
    """Return whether a call of a function, or of an object, gives a coroutine and no value.

    >>> is_async(print)
    False
    """
    calls = (function, getattr(function, "__call__", None), getattr(function, "forward", None))  # noqa: B004
    return any(map(inspect.iscoroutinefunction, calls))


def is_lost(text: object) -> bool:
    """Return whether a text stands for an object that is not there any more."""
    return isinstance(text, str) and text.startswith(PREFIX) and not isinstance(text, GivenObject)


def refuse_lost(name: str, text: str) -> NoReturn:
    """Raise `SettingError` for a setting that was an object when the run began."""
    fix = f"give it again: simsgd.train(resume=..., {name}=...)"
    raise SettingError(name, text, "was an object in Python", fix)


def check_class(kind: str, value: str, method: type) -> None:
    """Raise `SettingError` for functions that take fewer than they are given, and for odd flags.

    `value` is what named the class as a setting of a `kind`.
    """
    for name, own in vars(method).items():
        bases = (vars(base) for base in method.__mro__[1:])
        known = next((base[name] for base in bases if name in base), None)
        if name.startswith("__"):
            continue
        if inspect.isfunction(own) and inspect.isfunction(known):
            parameters = inspect.signature(known).parameters.values()
            check_call(kind, value, name, own, [p.name for p in parameters if p.kind in _BY_PLACE])
        flag = _is_flag(known) and not isinstance(own, bool | property | functools.cached_property)
        rule = f"declares {name} = {shown(quoted(own))}, which is neither true nor false"
        fix = "write @property above it" if inspect.isfunction(own) else ""
        require(not flag, kind, value, rule, fix)


def check_call(
    kind: str, value: str, name: str, function: Callable[..., object], given: Sequence[str]
) -> None:
    """Raise `SettingError` for a function `name` that does not take what it is `given` by place."""
    taken = inspect.signature(function)
    try:
        taken.bind(*given)
    except TypeError as wrong:
        fix = f"write {name}({', '.join(given)})"
        raise SettingError(kind, value, f"has {name}{taken}", fix) from wrong


def _is_flag(known: object) -> bool:
    """Return whether what a contract has under a name is true or false."""
    if isinstance(known, property) and known.fget is not None:
        return known.fget.__annotations__.get("return") is bool
    return isinstance(known, bool)
