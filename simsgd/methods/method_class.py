"""The type of methods' classes: settings are held to their kinds, whoever makes one."""

import dataclasses
from abc import ABCMeta
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..registry import settings_of
from ..settings import SettingError, check_size, fits, kinds_in_words, quoted
from ..units import plain_numbers


class MethodClass(ABCMeta):
    """The type of a method's class, a dataclass of settings that are checked before one is made.

    Python's `TopK("x")` is refused as a spec's `topk:x` is: with a `SettingError`.
    """

    def __call__(cls, *by_place: object, **by_name: object) -> Any:
        """Return a method with these settings, numpy's numbers as Python's."""
        by_place, by_name = tuple(map(plain_numbers, by_place)), plain_numbers(by_name)
        if dataclasses.is_dataclass(cls):
            places = [f.name for f in dataclasses.fields(cls) if f.init and not f.kw_only]
            given = {**dict(zip(places, by_place, strict=False)), **by_name}
            for name, (kinds, usual) in _settings(cls).items():
                _check(name, given.get(name, usual), kinds)
        return super().__call__(*by_place, **by_name)


@lru_cache(maxsize=256)
def _settings(method: type) -> dict[str, tuple[tuple[type, ...], object]]:
    """Return the kinds and the default of each setting that is annotated with plain classes."""
    try:
        hints = get_type_hints(method)
    except (NameError, AttributeError, TypeError, SyntaxError):  # of what only type checkers read
        return {}
    found = {}
    for field in settings_of(method):
        hint = hints[field.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if Any not in kinds and all(isinstance(kind, type) for kind in kinds):
            found[field.name] = kinds, field.default
    return found


def _check(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raise `SettingError` for a value of another kind, and for a number that no tensor holds."""
    if value is dataclasses.MISSING:  # of a default that is made, or an argument that lacks
        return
    if not fits(value, kinds):
        raise SettingError(name, quoted(value), f"must be {kinds_in_words(kinds)}")
    check_size(name, value)
