"""The optimizers of torch, by name, and what they take."""

import functools
import inspect
from typing import Any

import torch

from ..given_object import GivenObject
from ..settings import SettingError, quoted, require, unknown

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OF_NO_STEP = {
    "differentiable": "no step is differentiated",
    "capturable": "no step is captured in a graph",
}


def optimizer_class(name: object) -> type[torch.optim.Optimizer]:
    """Return the class of this name, of torch.optim or given; `SettingError` if there is none."""
    if isinstance(name, GivenObject) and isinstance(name.value, type):
        return name.value
    known = torch_optimizers()
    if not isinstance(name, str) or name not in known:
        raise unknown("optimizer", str(name), known)
    return known[name]


def optimizer_name(kind: type) -> str:
    """Return the name of a class of torch.optim, or of a user's own, which goes with it.

    Raises `SettingError` for a class that is no optimizer, or that needs a closure.
    """
    name = kind.__name__
    if torch_optimizers().get(name) is kind:
        return name
    if not issubclass(kind, torch.optim.Optimizer) or is_of_torch(kind):
        raise SettingError("optimizer", name, f"must be one of {', '.join(torch_optimizers())}")
    wanted = [*inspect.signature(kind.step).parameters.values()][1:]  # after self
    needed = [p.name for p in wanted if p.default is p.empty and p.kind not in _VARIABLE]
    rule, fix = f"has a step that needs {', '.join(needed)}", "no step is given anything here"
    require(not needed, "optimizer", name, rule, fix)
    return GivenObject.of(kind)


def is_of_torch(kind: type) -> bool:
    """Return whether a class is one of torch's own."""
    return kind.__module__.startswith("torch.")


def optimizer_arguments(name: str) -> frozenset[str]:
    """Return the settings that an optimizer takes."""
    return frozenset(optimizer_defaults(name))


def optimizer_defaults(name: object) -> dict[str, Any]:
    """Return the settings that an optimizer takes, with their defaults.

    Those that a class of a user's own hands on by `**kwargs` are of the class it inherits from.
    """
    kind: Any = optimizer_class(name)
    return _arguments(kind)


@functools.cache
def _arguments(kind: Any) -> dict[str, Any]:
    given = dict(inspect.signature(kind).parameters)
    variable = {n: p for n, p in given.items() if p.kind in _VARIABLE}
    taken = {n: p.default for n, p in given.items() if n not in {*variable, "params"}}
    base = kind.__mro__[1]
    hands_on = any(p.kind is p.VAR_KEYWORD for p in variable.values())
    if hands_on and base is not torch.optim.Optimizer:
        taken = {**_arguments(base), **taken}
    return taken


def check_argument(name: str, value: object) -> None:
    """Raise `SettingError` for text where optimizers take numbers, and for what has no place."""
    if name in _OF_NO_STEP and value is True:
        raise SettingError(
            name, None, f"has no place here, where {_OF_NO_STEP[name]}", "leave it out"
        )
    if not isinstance(value, str):
        return
    kinds = {
        str(inspect.signature(kind).parameters[name].annotation)
        for kind in torch_optimizers().values()
        if name in optimizer_arguments(kind.__name__)
    }
    if kinds and not any("str" in kind for kind in kinds):
        raise SettingError(name, quoted(value), "must be a number, not text")


@functools.cache
def taken_by_any() -> frozenset[str]:
    """Return the settings that some optimizer takes."""
    return frozenset().union(*map(optimizer_arguments, torch_optimizers()))


@functools.cache
def torch_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the classes of torch.optim by name, those that need no closure."""
    return {
        name: found
        for name, found in vars(torch.optim).items()
        if isinstance(found, type)
        and issubclass(found, torch.optim.Optimizer)
        and name not in ("Optimizer", "LBFGS", "SparseAdam")  # need a closure, sparse gradients
    }
