"""Finds models and regimes by name: files in `models/` and `regimes/`, or a user's own.

A model file defines a factory: a callable named as the file (`resnet` in `resnet.py`), else one
named `model`, which returns a `torch.nn.Module`. It is given `num_classes` and `input_shape` if it
names them. A model file may also define

    regime           settings by epoch: a dict, a list of dicts, a function, or a regime's name
    schedule         a function (epochs, batches) -> regime, called once in place of `regime`, where
                     the settings depend on the epochs of the run or the steps of an epoch
    input_transform  {"train": f, "eval": f}, each from float32 images [B, C, H, W] in [0, 1] to the
                     network's input; one that has an attribute `draws` is called f(images, uniform)
                     with that many random numbers in [0, 1) an image: uniform [B, draws]
    criterion        a callable (output, target) -> mean loss, by default cross-entropy
    epochs           how many epochs to train unless set otherwise
    batch            the global batch that the regime is for, by default 128; --scale-lr goes by it
    scale_lr         sqrt or linear: how lr follows the batch unless set otherwise
    scale_epochs     whether the epochs do

each of which the factory may override by setting an attribute of that name on the network. One
that carries a state from batch to batch names it in `carried`, see docs/language.md. A regime file
defines `regime` or `schedule`, and may define the last four.
Models know torch, never simsgd.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from .registry import load_file, own_line, own_path
from .settings import SettingError, one_line, require, unknown
from .units import home_path, literal, module_name

_called = {"models": "model", "regimes": "regime"}  # a folder, and the setting that names its files


def names(kind: str) -> list[str]:
    """Return the names of all "models" or "regimes".

    >>> "resnet" in names("models")
    True
    """
    folder = importlib.import_module(f"simsgd.{kind}")
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def load(kind: str, name: str) -> ModuleType:
    """Return the module of a model or a regime, given by name or as the path of a .py file.

    Raises `SettingError` for an unknown name, the nearest ones first, and for a missing file.
    """
    if name.endswith(".py"):
        return load_file(home_path(name), _called[kind])
    file, _, chosen = name.rpartition(":")
    rule = f"is a file alone, which defines one {_called[kind]}"
    fix = f"leave out :{chosen}, and call what it names {_called[kind]}"
    require(not file.endswith(".py"), _called[kind], name, rule, fix)
    if name not in names(kind):
        fix = f"; or a file of your own, ./{_called[kind]}.py"
        raise unknown(_called[kind], name, names(kind), fix)
    return importlib.import_module(f"simsgd.{kind}.{name}")


def build_model(
    name: str | ModuleType,
    config: Mapping[str, object],
    num_classes: int | None,
    input_shape: tuple[int, ...] | None,
) -> nn.Module:
    """Return a network made by the factory of a model, named or loaded, with the user's settings.

    What is None is left to the factory's default. Raises `SettingError` if there is no factory, or
    if it does not take or refuses a setting.
    """
    module = load("models", name) if isinstance(name, str) else name
    whole = module.__name__
    stem = module_name(module.__file__ or whole) if module.__spec__ else whole
    file = own_path(module) or stem
    factory = _factory(module, stem)
    taken = inspect.signature(factory).parameters
    known = {"num_classes": num_classes, "input_shape": input_shape}
    usual = {key: value for key, value in known.items() if key in taken and value is not None}
    given = {**usual, **config}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    strange = [] if takes_any else [key for key in config if key not in taken]
    shown = ", ".join(f"{key}={value}" for key, value in config.items()) or None
    rule = f"has arguments that {stem} does not take: {', '.join(strange)}"
    fix = f"it takes {_choices(taken)}" if taken else "leave it out"
    require(not strange, "model_config", shown, rule, fix)
    try:
        _check_kinds(config, taken)
        network = factory(**given)
    except Exception as wrong:  # whatever the user's own code raises
        if not config or not isinstance(wrong, TypeError | ValueError):
            place = own_line(wrong) or one_line(wrong)
            raise SettingError("model", file, f"cannot be built: {place}") from wrong
        fix = f"{stem} takes {_choices(taken)}"
        raise SettingError("model_config", shown, f"does not fit: {wrong}", fix) from wrong
    if inspect.iscoroutine(network):
        network.close()
    if not isinstance(network, nn.Module):
        rule = f"returns a {type(network).__name__} and not a torch.nn.Module"
        raise SettingError("model", file, rule, "let the function return the network")
    return network


def _check_kinds(config: Mapping[str, object], taken: Mapping[str, inspect.Parameter]) -> None:
    """Raise `ValueError` for a text where the factory's default is a number, or true or false."""
    words = {bool: "true or false", float: "a number"}
    for key, value in config.items():
        kind = type(taken[key].default) if key in taken else None
        if kind in words and isinstance(value, str):
            raise ValueError(f"{key} must be {words[kind]}, not {value}")


def usual_input_shape(module: ModuleType) -> tuple[int, ...] | None:
    """Return the shape of a sample that a model is made for unless told another; None: unknown."""
    stem = module_name(module.__file__ or module.__name__)
    taken = inspect.signature(_factory(module, stem)).parameters
    shape = taken["input_shape"].default if "input_shape" in taken else None
    return shape if isinstance(shape, tuple) else None


def attribute(module: ModuleType, model: nn.Module, name: str, default: object = None) -> Any:
    """Return what a network carries under a name, such as its regime, else what its file does."""
    return getattr(model, name, getattr(module, name, default))


def begin_texts(model: nn.Module, texts: int) -> None:
    """Put a model that carries a state before the first words of so many texts.

    Raises `SettingError` for a `begin` that takes other arguments.
    """
    begin: Callable[[int], object] | None = getattr(model, "begin", None)
    if begin is None:
        return
    taken = inspect.signature(begin)
    try:
        taken.bind(texts)
    except TypeError as wrong:
        rule = f"has a method begin{taken}, which is called with the number of streams"
        raise SettingError("model", type(model).__name__, rule, "take (streams)") from wrong
    begin(texts)


def parse_config(text: str) -> dict[str, object]:
    """Return the settings that a text such as "depth=20, shortcut=B" holds; nothing is evaluated.

    Raises `SettingError` for a text that does not read so.

    >>> parse_config("depth=20, hidden=(256, 128), shortcut=B")
    {'depth': 20, 'hidden': (256, 128), 'shortcut': 'B'}
    """
    settings: dict[str, object] = {}
    parts = re.split(r",(?=\s*\w+\s*=)", text) if text.strip() else []
    for part in parts:
        pair = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(.*\S)\s*", part, re.DOTALL)
        if pair is None:
            rule = 'must read "key=value, key=value"'
            raise SettingError("model_config", text, rule, 'for example "depth=20, width=1"')
        require(pair[1] not in settings, "model_config", text, f"sets {pair[1]} twice")
        empty = pair[2].endswith(",")
        require(not empty, "model_config", text, "has a comma with no setting behind it")
        settings[pair[1]] = literal(pair[2])
    return settings


def _choices(taken: Iterable[str]) -> str:
    """Return what a user may set of a factory's arguments; the data set the others."""
    return ", ".join(name for name in taken if name not in ("num_classes", "input_shape"))


def _factory(module: ModuleType, stem: str) -> Callable[..., object]:
    for name in (stem, "model"):
        factory: Callable[..., object] | None = vars(module).get(name)
        if isinstance(factory, nn.Module):
            fix = f"write a function that makes it, def {name}(): return ..."
            raise SettingError("model", stem, f"defines {name} as a network itself", fix)
        if callable(factory):
            return factory
    raise SettingError("model", stem, f"defines neither a function {stem} nor one called model")
