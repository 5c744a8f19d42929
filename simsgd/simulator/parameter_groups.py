"""Parameter groups: which parameters an optimizer steps with options of their own.

A regime has them under `param_groups`, a list of which the first that takes a parameter wins; the
others follow the regime itself:

    {"params": "dim<2", "weight_decay": 0.0}
    {"params": ["dim!=2", "embedding.*"], "optimizer": "AdamW", "lr": 3e-4}
    {"params": lambda name, parameter: name.startswith("head"), "lr_mult": 0.1}

`params` is a rule (dim or numel, one of < <= > >= = !=, a number), a pattern of names with * and ?,
a function of (name, parameter), or a list of which one is enough. A group has all that the regime
sets and that it does not set itself; with another `optimizer`, lr and weight_decay alone. `lr_mult`
times the regime's lr is its lr. A name of `RULES` may stand for a group.
"""

import inspect
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from ..given_object import WITHOUT_ASYNC, GivenObject, is_async, is_lost, refuse_lost
from ..settings import SettingError, require, shown, unknown
from .optimizer_class import optimizer_arguments, taken_by_any
from .regime_form import accepts

Settings = dict[str, Any]
Selector = str | Callable[[str, Tensor], object]
RULES: dict[str, Settings] = {  # names of groups that many use
    "no_decay_1d": {"params": "dim<2", "weight_decay": 0.0},
}
_MEASURED = re.compile(r"\s*(dim|numel)\s*(<=|>=|!=|<|>|=)\s*(\d+)\s*", re.ASCII)
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with options of their own. Raises `SettingError` for a form that is none."""

    params: tuple[Selector, ...]
    options: Settings = field(hash=False)  # of the optimizer, `optimizer` and `lr_mult` included
    text: str = field(default="", compare=False)  # as the regime has it, where lr has changed

    def takes(self, name: str, parameter: Tensor) -> bool:
        """Return whether a parameter [*shape] is one of the group's."""
        return any(_selects(selector, name, parameter) for selector in self.params)

    def over(self, settings: Settings) -> Settings:
        """Return what holds for the group where a regime sets `settings`."""
        if "optimizer" in self.options:
            settings = {k: v for k, v in settings.items() if k in ("lr", "weight_decay")}
        own = {**settings, **self.options}
        times = own.pop("lr_mult", None)
        return own if times is None else {**own, "lr": settings.get("lr", 0.0) * times}

    def with_decay_times(self, factor: float) -> "ParameterGroup":
        """Return the group with its weight decay, if it has one of its own, times a factor.

        0 takes that of the optimizer's default away too.
        """
        if factor and "weight_decay" not in self.options:
            return self
        decay = factor * self.options.get("weight_decay", 0.0)
        return ParameterGroup(self.params, {**self.options, "weight_decay": decay})

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `SettingError` for a pattern of names that none of `names` has."""
        known = list(names)
        for selector in self.params:
            if isinstance(selector, str) and not _MEASURED.fullmatch(selector):
                check_pattern("param_groups", selector, known)

    def __str__(self) -> str:
        if self.text:
            return self.text
        options = ", ".join(f"{name}={shown(value)}" for name, value in self.options.items())
        return f"{'|'.join(map(_in_words, self.params))}: {options}"


@dataclass(frozen=True)
class GroupPlan:
    """What one group of parameters is stepped with."""

    optimizer: str
    options: Settings
    names: tuple[str, ...]


def parameter_groups(form: object) -> tuple[ParameterGroup, ...]:
    """Return the groups that a regime's `param_groups` mean; None is none.

    Raises `SettingError` for a form or a name that does not exist.
    """
    if form is None or form == "none":
        return ()
    if isinstance(form, GivenObject):
        return parameter_groups(form.value)
    if is_lost(form):
        refuse_lost("param_groups", str(form))
    if isinstance(form, ParameterGroup):
        return (form,)
    if isinstance(form, str):
        if form.lstrip().startswith(("[", "{")):
            return parameter_groups(_read(form))
        if form not in RULES:
            raise unknown("param_groups", form, RULES)
        return parameter_groups(RULES[form])
    if isinstance(form, list | tuple):
        return tuple(group for part in form for group in parameter_groups(part))
    rule = "must be a list of dicts with params and options"
    fix = 'as [{"params": "dim<2", "weight_decay": 0.0}]'
    if not isinstance(form, Mapping) or "params" not in form:
        raise SettingError("param_groups", form, rule, fix)
    options = {key: value for key, value in form.items() if key != "params"}
    require(bool(options), "param_groups", dict(form), "has a group without options", fix)
    both = {"lr", "lr_mult"} <= options.keys()
    require(not both, "param_groups", None, "sets lr and lr_mult at once", "set one")
    given = form["params"]
    chosen = tuple(given) if isinstance(given, list | tuple) else (given,)
    for selector in chosen:
        if not isinstance(selector, str) and not callable(selector):
            raise SettingError("params", selector, "must be a rule, a pattern or a function")
        named = _in_words(selector)
        require(not is_async(selector), "params", named, "is an async function", WITHOUT_ASYNC)
        if callable(selector) and not accepts(selector, "", None):
            rule = f"is a function {named}{inspect.signature(selector)}"
            raise SettingError("params", None, rule, "take (name, parameter)")
    return (ParameterGroup(chosen, options),)


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as wrong:
        fix = """as '[{"params": "dim<2", "weight_decay": 0.0}]'"""
        raise SettingError("param_groups", text, f"is no JSON: {wrong}", fix) from wrong


def check_group(group: ParameterGroup) -> None:
    """Raise `SettingError` for options of a group that its optimizer, or any, does not take."""
    name = group.options.get("optimizer")
    takes = taken_by_any() if name is None else optimizer_arguments(name)
    for key in group.options:
        if key not in {*takes, "optimizer", "lr_mult"}:
            raise unknown("param_groups", str(key), {*takes, "optimizer", "lr_mult"})


def plans(settings: Settings, members: Sequence[tuple[str, ...]]) -> list[GroupPlan]:
    """Return what each group with parameters is stepped with; `members` are as `members_of` has."""
    name = settings.get("optimizer", "SGD")
    every = [settings, *(group.over(settings) for group in settings.get("param_groups", ()))]
    return [
        GroupPlan(own.get("optimizer", name), own, names)
        for own, names in zip(every, members, strict=True)
        if names
    ]


def members_of(
    groups: Sequence[ParameterGroup], like: Mapping[str, Tensor]
) -> list[tuple[str, ...]]:
    """Return the parameters by name: those that no group takes, and those of each group.

    `like` {name: [*shape]} are the model's. Raises `SettingError` for a pattern without any.
    """
    found: list[list[str]] = [[] for _ in range(len(groups) + 1)]
    for group in groups:
        group.check_names(like)
    for name, parameter in like.items():
        places = (place for place, group in enumerate(groups, 1) if group.takes(name, parameter))
        found[next(places, 0)].append(name)
    return [tuple(names) for names in found]


def check_groups(form: object, like: Mapping[str, Tensor]) -> None:
    """Raise `SettingError` for a group of the setting that takes none of the parameters.

    A group of a regime, which is for many models, need not take any.
    """
    for group in parameter_groups(form):
        group.check_names(like)
        taken = any(group.takes(name, parameter) for name, parameter in like.items())
        rule, fix = "has a group that takes no parameter", "leave it out"
        require(taken, "param_groups", str(group), rule, fix)


def matches(name: str, pattern: str) -> bool:
    """Return whether a parameter's name has a pattern, with * and ?, or is spelled like it."""
    return name == pattern or fnmatchcase(name, pattern)


def check_pattern(setting: str, pattern: str, names: list[str]) -> None:
    """Raise `SettingError` for a pattern that none of the parameters' `names` has."""
    if not any(matches(name, pattern) for name in names):
        first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        near = get_close_matches(pattern, names, n=3, cutoff=0.6)
        fix = f"near it are {', '.join(near)}" if near else f"the model has {first}"
        raise SettingError(setting, pattern, "matches no parameter", fix)


def _selects(selector: Selector, name: str, parameter: Tensor) -> bool:
    if not isinstance(selector, str):
        chosen = selector(name, parameter)
        rule = f"is a function {_in_words(selector)} that returns a tensor"
        is_tensor = isinstance(chosen, Tensor)
        require(not is_tensor, "params", None, rule, "return whether the group takes it")
        return bool(chosen)
    read = _MEASURED.fullmatch(selector)
    if read is None:
        return matches(name, selector)
    measure = parameter.dim() if read[1] == "dim" else parameter.numel()
    return _COMPARED[read[2]](measure, int(read[3]))


def _in_words(selector: Selector) -> str:
    return selector if isinstance(selector, str) else getattr(selector, "__name__", "a function")
