"""The settings that a user's own optimizer of torch stands for.

It may be a class; an optimizer of the model's parameters that took no step yet; several, each of
some parameters; or a function of the model that returns such. The simulator makes optimizers of the
same classes and options by itself, one or one a worker, and never steps the user's.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..given_object import WITHOUT_ASYNC, GivenObject, is_async, is_lost, refuse_lost
from ..settings import SettingError, one_line, require, shown
from .optimizer_class import (
    is_of_torch,
    optimizer_arguments,
    optimizer_class,
    optimizer_defaults,
    optimizer_name,
    taken_by_any,
)
from .parameter_groups import ParameterGroup, Settings
from .regime import Regime

_PLAIN = (bool, int, float, complex, str, type(None))
_DEEP = 20  # objects within objects, of which deeper ones are not compared
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_TORCH = {"param_groups", "state", "defaults"}  # attributes that every optimizer has
_BY_SCHEDULERS = {"step", "_opt_called"}  # attributes that torch's schedulers set
_OF_SCHEDULERS = ("max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "n_avg")
_NO_OPTIONS = ("params", "initial_lr", "param_names")


@dataclass(frozen=True)
class Named:
    """The parameters of these names."""

    names: frozenset[str]

    @property
    def __name__(self) -> str:
        first = min(self.names)
        more = len(self.names) - 1
        return f"{first} and {more} more" if more else first

    def __call__(self, name: str, parameter: Tensor) -> bool:
        """Return whether a parameter is one of them."""
        return name in self.names


def optimizer_settings(spec: str, model: nn.Module, params: Mapping[str, nn.Parameter]) -> Settings:
    """Return what a regime would say in place of an optimizer, `params` those that are trained.

    Raises `SettingError` for what is no optimizer of the model's parameters.
    """
    if is_lost(spec):
        refuse_lost("optimizer", spec)
    if not isinstance(spec, GivenObject):
        return {"optimizer": spec}
    value = spec.value
    if isinstance(value, type):
        return {"optimizer": optimizer_name(value)}
    is_made = isinstance(value, torch.optim.Optimizer | list | tuple)
    require(not is_async(value), "optimizer", str(spec), "is an async function", WITHOUT_ASYNC)
    if callable(value) and not is_made:
        try:
            value = value(model)
        except TypeError as wrong:
            rule = f"cannot be made: {one_line(wrong)}"
            raise SettingError("optimizer", str(spec), rule) from wrong
    every: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    rule = (
        "must be an optimizer of torch, a class of such, or a function of the model that makes one"
    )
    right = bool(every) and all(isinstance(own, torch.optim.Optimizer) for own in every)
    require(right, "optimizer", str(spec), rule)
    return _settings(every, params)


class GivenOptimizers:
    """The optimizers that were given as objects, whose options are to stay as they were."""

    def __init__(self, spec: str | None) -> None:
        value = spec.value if isinstance(spec, GivenObject) else None
        every = value if isinstance(value, list | tuple) else [value]
        self._every = [own for own in every if isinstance(own, torch.optim.Optimizer)]
        self._begun = self._options()

    def check(self) -> None:
        """Raise `SettingError` for an option that was set since, which would have no effect."""
        for before, now in zip(self._begun, self._options(), strict=True):
            for name, value in now.items():
                if name not in before or value is before[name] or value == before[name]:
                    continue
                rule = f"has {name} {value} by now, which is {before[name]} in the simulator"
                fix = "let a regime or a scheduler change it, given to the simulator too"
                raise SettingError("optimizer", None, rule, fix)

    def _options(self) -> list[dict[str, Any]]:
        groups = [group for own in self._every for group in own.param_groups]
        return [{n: v for n, v in group.items() if n not in _NO_OPTIONS} for group in groups]


def beside_object(spec: str | None, regime: Regime) -> Regime:
    """Return a regime that is given beside an optimizer.

    Raises `SettingError` if it sets what an optimizer that is an object has itself; the regime that
    is returned does so where a function of it comes to that later.
    """
    if not isinstance(spec, GivenObject) or isinstance(spec.value, type):
        return regime
    _require_none_of_it(regime.names)

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def checked(*given: object) -> object:
            settings = function(*given)
            if isinstance(settings, Mapping):
                _require_none_of_it(settings)
            return settings

        return checked

    return regime.wrapped(watched)


def _require_none_of_it(names: Iterable[str]) -> None:
    twice = sorted({"optimizer", "param_groups", *taken_by_any()}.intersection(names))
    rule = f"sets {', '.join(twice)}, and optimizer is an object, which has its own"
    require(not twice, "regime", None, rule, "leave them out of the regime, or name the optimizer")


def _settings(
    every: Sequence[torch.optim.Optimizer], params: Mapping[str, nn.Parameter]
) -> Settings:
    names = {p: name for name, p in params.items()}
    found: list[tuple[frozenset[str], Settings]] = []
    for optimizer in every:
        kind = optimizer_name(type(optimizer))
        stepped = any(float(own.get("step", 1)) > 0 for own in optimizer.state.values())
        require(not stepped, "optimizer", kind, "has taken steps already", "make a new one")
        _require_options_alone(kind, optimizer)
        for group in optimizer.param_groups:
            own = [p for p in group["params"] if p.requires_grad]
            if any(p not in names for p in own):
                rule = "has parameters that are not the model's"
                raise SettingError("optimizer", kind, rule, "make it of model.parameters()")
            twice = [names[p] for p in own if any(names[p] in taken for taken, _ in found)]
            if twice:
                rule = f"has the parameter {twice[0]}, which another optimizer has too"
                raise SettingError("optimizer", kind, rule, "give each parameter to one")
            usual = found[0][1] if found else {}
            options = {"optimizer": kind, **_options(kind, optimizer, group, usual)}
            found.append((frozenset(names[p] for p in own), options))
    taken = frozenset[str]().union(*(own for own, _ in found))
    missing = [name for name in params if name not in taken]
    if missing:
        rule = f"lacks the parameter {missing[0]}"
        fix = "give it to a group, or freeze it with requires_grad_(False)"
        raise SettingError("optimizer", str(found[0][1]["optimizer"]), rule, fix)
    (_, usual), *others = found
    groups = tuple(ParameterGroup((Named(own),), options) for own, options in others if own)
    return {**usual, **({"param_groups": groups} if groups else {})}


def _require_options_alone(kind: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise `SettingError` for what an optimizer has and another of its class and options lacks."""
    begun = all(hasattr(optimizer, name) for name in _HOOKS)
    rule = "has an __init__ that does not call torch.optim.Optimizer.__init__"
    fix = "call it, and make an optimizer that holds no other"
    require(begun, "optimizer", kind, rule, fix)
    hooked = any(getattr(optimizer, name) for name in _HOOKS)
    fix = "let the regime regularize or clip, or leave them out"
    require(not hooked, "optimizer", kind, "has hooks, which would not be called", fix)
    takes = optimizer_arguments(kind)
    rule, fix = "takes no lr", "only an optimizer that does, and calls no other, can be made anew"
    require("lr" in takes, "optimizer", kind, rule, fix)
    groups = [{**own, "lr": own.get("initial_lr", own.get("lr"))} for own in optimizer.param_groups]
    again = [{k: v for k, v in own.items() if k in {*takes, "params"}} for own in groups]
    given = {key: groups[0][key] for key in takes if key in groups[0]}
    given |= _kept_apart(kind, optimizer)
    try:
        other, third = (optimizer_class(kind)(again, **given) for _ in range(2))
    except Exception:  # of a user's own class, which is told where it is made
        return
    known = {*takes, *optimizer.defaults, *_NO_OPTIONS, *_OF_SCHEDULERS}
    options = {key for group in groups for key, own in group.items() if not isinstance(own, str)}
    strange = sorted(options - known) if not is_of_torch(type(optimizer)) else []
    rule = f"has {', '.join(strange)} in a group, which is no argument of its class"
    require(not strange, "optimizer", kind, rule, "make it one, or leave it out")
    made, fix = vars(other), "make it an argument of the class, kept in the groups or by its name"
    for name, value in _attributes(optimizer).items():
        if name in made and _other(made[name], vars(third)[name]):
            continue  # as a time is
        if name not in made or _other(value, made[name]):
            rule = f"has {name} = {shown(value)}, which one made anew of its options would lack"
            raise SettingError("optimizer", kind, rule, fix)
    for group, anew in zip(groups, other.param_groups, strict=True):
        for name in anew.keys() & group.keys() - {"params"}:
            rule = f"has {name} {shown(group[name])}, and one made anew {shown(anew[name])}"
            require(not _other(group[name], anew[name]), "optimizer", kind, rule, fix)


def _attributes(optimizer: torch.optim.Optimizer) -> Settings:
    """Return an optimizer's own attributes; of a class of torch's those alone that it may call."""
    own = {name: value for name, value in vars(optimizer).items() if name not in _OF_TORCH}
    if hasattr(own.get("step"), "_wrapped_by_lr_sched"):
        own = {name: value for name, value in own.items() if name not in _BY_SCHEDULERS}
    if is_of_torch(type(optimizer)):
        own = {name: value for name, value in own.items() if hasattr(type(optimizer), name)}
    return own


def _other(one: Any, two: Any, depth: int = 0) -> bool:
    """Return whether two values differ, as far as that can be told."""
    if depth > _DEEP:
        return False
    if type(one) is not type(two):
        return not (isinstance(one, int | float) and isinstance(two, int | float) and one == two)
    if isinstance(one, torch.Tensor):
        return not (one.shape == two.shape and torch.equal(one, two))
    if isinstance(one, np.ndarray):
        return not np.array_equal(one, two)
    if isinstance(one, FunctionType):
        return one.__code__ is not two.__code__
    if isinstance(one, partial):
        return _other(one.func, two.func) or _other(one.args, two.args, depth + 1)
    if isinstance(one, _PLAIN):
        return bool(one != two) and not (one != one and two != two)
    if isinstance(one, type | BuiltinFunctionType):
        return one is not two
    if isinstance(one, torch.optim.Optimizer | nn.Module):
        return False
    return _others_within(one, two, depth + 1)


def _others_within(one: Any, two: Any, depth: int) -> bool:
    """Return whether two objects of one class hold other values."""
    if isinstance(one, dict):
        by_key = ((own, two.get(key)) for key, own in one.items())
        return one.keys() != two.keys() or any(_other(*pair, depth) for pair in by_key)
    if isinstance(one, list | tuple | deque):
        pairs = zip(one, two, strict=False)
        return len(one) != len(two) or any(_other(*pair, depth) for pair in pairs)
    if hasattr(one, "__dict__"):
        return _other(vars(one), vars(two), depth)
    try:
        return pickle.dumps(one) != pickle.dumps(two)
    except Exception:  # of what has no copy
        return False


def _kept_apart(kind: str, optimizer: torch.optim.Optimizer) -> Settings:
    """Return the arguments that an optimizer keeps as attributes, not in its groups."""
    own, groups = vars(optimizer), optimizer.param_groups[0]
    apart = [key for key in optimizer_arguments(kind) if key in own and key not in groups]
    return {key: own[key] for key in apart if isinstance(own[key], (*_PLAIN, tuple))}


def _options(
    kind: str, optimizer: torch.optim.Optimizer, group: Settings, first: Settings
) -> Settings:
    """Return a group's options: lr, and those that are not the default or that the first sets."""
    usual = optimizer_defaults(kind)
    chosen = {key: group[key] for key in usual if key in group}
    chosen |= _kept_apart(kind, optimizer)
    chosen["lr"] = group.get("initial_lr", group["lr"])  # that a scheduler has not changed
    kept = {k: v for k, v in chosen.items() if k in first or _other(v, usual[k])}
    for key, value in kept.items():
        rule = f"has {key} {shown(value)}, which cannot be handed on"
        plain = not callable(value) and not isinstance(value, np.ndarray)
        require(plain, "optimizer", kind, rule, "let a class of your own have it by default")
    return {**dict(sorted(kept.items())), "lr": chosen["lr"]}
