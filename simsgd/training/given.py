"""Objects that a run gets in Python in place of the names that settings give.

What is an object cannot be made again in another process: such a run is resumed by giving it again,
and can be neither swept nor verified.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from ..catalog import load
from ..config import Config
from ..given_object import PREFIX as _OBJECT
from ..given_object import WITHOUT_ASYNC, is_async, refuse_lost, with_objects
from ..gradients.contract import Criterion
from ..settings import SettingError, require
from .data import Dataset
from .data.own import own_dataset


@dataclass(frozen=True)
class Given:
    """What was given as objects."""

    dataset: Dataset | None = None
    module: ModuleType | None = None  # as if the model were the file's
    criterion: Criterion | None = None
    metric: Callable[..., Any] | None = None  # (output, target) -> number


NOTHING = Given()
_WRITTEN = {  # settings that are no objects, where one might expect it
    "model_config": "such as 'depth=20, width=1'",
    "regime": "name a file that defines it, ./regime.py; a Simulator takes it as it is",
}


def taken_objects(settings: Mapping[str, object]) -> tuple[Given, dict[str, object]]:
    """Return the objects among settings, and the settings with names in place of them.

    Raises `SettingError` for an object that is none of these.
    """
    for name, fix in _WRITTEN.items():
        wrong = settings.get(name)
        require(isinstance(wrong, str | None), name, wrong, "must be text", fix)
    plain, module, dataset = with_objects(settings), None, None
    model, data = settings.get("model"), settings.get("dataset")
    functions = {name: _function(plain, name) for name in ("criterion", "metric")}
    if model is not None and not isinstance(model, str):
        module = _module(model)
        plain["model"] = _OBJECT + module.__name__
    if data is not None and not isinstance(data, str):
        dataset = own_dataset(type(data).__name__, data)
        plain["dataset"] = _OBJECT + dataset.name
    return Given(dataset, module, **functions), plain


def _function(settings: dict[str, object], name: str) -> Callable[..., Any] | None:
    """Return a function (output, target) among settings, and put its name in place of it."""
    function = settings.get(name)
    if function is None or isinstance(function, str):
        return None
    if not callable(function):
        raise SettingError(name, function, "must be a name or a function (output, target)")
    require(not is_async(function), name, name_of(function), "is async", WITHOUT_ASYNC)
    settings[name] = _OBJECT + name_of(function)
    return function


def model_module(config: Config, given: Given) -> ModuleType:
    """Return the module of the model. Raises `SettingError` if it was an object once."""
    assert config.model is not None
    if given.module is not None:
        return given.module
    refuse_object("model", config.model)
    return load("models", config.model)


def refuse_object(name: str, value: str) -> None:
    """Raise `SettingError` if a setting names what was an object when the run began."""
    if value.startswith(_OBJECT):
        refuse_lost(name, value)


def _module(model: object) -> ModuleType:
    if not callable(model):
        raise SettingError("model", model, "must be a name, a torch.nn.Module or a function")
    name = type(model).__name__ if isinstance(model, nn.Module) else name_of(model)
    module = ModuleType(name)
    module.model = (lambda: model) if isinstance(model, nn.Module) else model  # type: ignore[attr-defined]
    return module


def name_of(make: Callable[..., object]) -> str:
    """Return the name of a function, or of an object's class."""
    named = make.func if isinstance(make, partial) else make
    return str(getattr(named, "__name__", type(named).__name__)).strip("<>")
