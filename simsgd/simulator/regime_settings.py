"""The settings that a phase of a regime gives: read, checked, multiplied."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..settings import SettingError, check_size, kinds_in_words, quoted, require, shown, unknown
from .layer_compressors import layer_rules
from .optimizer_class import (
    check_argument,
    optimizer_arguments,
    optimizer_class,
    optimizer_name,
    taken_by_any,
)
from .parameter_groups import ParameterGroup, Settings, check_group, parameter_groups
from .regularizers import regularizers
from .schedulers import scheduler_of

OURS = ("prune", "compressor")  # fraction of entries dropped, in [0, 1); a spec; one at a time


def read_settings(settings: Any) -> Any:
    """Return settings of a phase with what they give in other forms than it is used in.

    An optimizer's class is its name; parameter groups, compressors by layer and a scheduler are
    read, unless a function gives them. What is no mapping is returned as it is.
    """
    return _grouped(_by_name(settings))


def check_settings(settings: Mapping[str, object], structure: Sequence[str] = ()) -> None:
    """Raise `SettingError` for a setting of a phase that nothing takes, or a value out of range.

    `structure` are keys that a phase may have beside settings.
    """
    known = {
        *OURS, "compress_layers", "optimizer", "regularizer", "param_groups", "scheduler",
        *structure,
    }  # fmt: skip
    name = settings.get("optimizer")
    takes = optimizer_arguments(name) if isinstance(name, str) else frozenset[str]()
    for key, value in settings.items():
        if key not in known | takes and key not in taken_by_any():
            fix = unknown("key", str(key), known | taken_by_any()).fix
            raise SettingError("regime", str(key), "sets something that is not known", fix)
        _check_value(key, value)
        check_argument(key, value)
    both = settings.keys() >= set(OURS)
    require(not both, "regime", None, "sets prune and compressor at once", "set one")
    if isinstance(name, str):
        for key in sorted(settings.keys() - known - takes):
            rule, fix = f"is not taken by {settings['optimizer']}", "leave it out"
            value = None if settings[key] is True else settings[key]
            raise SettingError(key, value, rule, fix)


def multiplied(settings: Settings, factors: Sequence[float]) -> Settings:
    """Return settings with every lr multiplied by `factors`, one after the other."""
    changed = dict(settings)
    for factor in factors if "lr" in settings else ():
        changed["lr"] = changed["lr"] * factor
    groups = []
    for group in settings.get("param_groups", ()):
        options = dict(group.options)
        for factor in factors if "lr" in options else ():
            options["lr"] = options["lr"] * factor
        groups.append(ParameterGroup(group.params, options, str(group)))
    return {**changed, "param_groups": tuple(groups)} if groups else changed


def _by_name(settings: Any) -> Any:
    """Return settings with the name of an optimizer that they give by its class."""
    given: Any = settings.get("optimizer") if isinstance(settings, Mapping) else None
    if not isinstance(given, type):
        return settings
    return {**settings, "optimizer": optimizer_name(given)}


def _grouped(settings: Any) -> Any:
    """Return settings with what is read before it is used, unless a function gives it."""
    if not isinstance(settings, Mapping):
        return settings
    layers = settings.get("compress_layers", ())
    if layers != () and not callable(layers):
        settings = {**settings, "compress_layers": layer_rules(layers)}
    if settings.get("scheduler") is not None:
        settings = {**settings, "scheduler": scheduler_of(settings["scheduler"])}
    form = settings.get("param_groups")
    if form is None or callable(form):
        return settings
    groups = parameter_groups(form)
    for group in groups:
        for key, value in group.options.items():
            try:
                plain = key == "optimizer" or not callable(value)
                require(plain, key, None, "must be a value", "let a function give all the groups")
                _check_value("lr" if key == "lr_mult" else key, value)
            except SettingError as wrong:
                rule = f"has a group with {key} {shown(value)}, which {wrong.rule}"
                raise SettingError("param_groups", None, rule, wrong.fix) from wrong
        check_group(group)
    return {**settings, "param_groups": groups}


def _check_value(key: str, value: object) -> None:
    if callable(value):
        return
    if key in ("lr", "weight_decay", "momentum", "prune") and isinstance(value, str | bool):
        raise SettingError(
            key, quoted(value), f"must be a number, not {kinds_in_words([type(value)])}"
        )
    if key == "prune":
        holds = isinstance(value, int | float) and 0 <= value < 1
        require(holds, "prune", value, "must lie in [0, 1)", "for 99.9 % use 0.999")
    elif key == "compressor":
        require(isinstance(value, str), key, value, "must be a spec, such as topk:0.01")
    elif key in ("lr", "weight_decay", "momentum"):
        one = not isinstance(value, torch.Tensor) or value.numel() == 1
        holds = isinstance(value, int | float | torch.Tensor) and one and bool(value >= 0)
        require(holds, key, value, "must be a number of at least 0")
        below = isinstance(value, int | float | torch.Tensor) and bool(value < 1)
        require(key != "momentum" or below, key, value, "must lie in [0, 1)")
        require(math.isfinite(float(value)), key, value, "must be finite")  # type: ignore[arg-type]
        check_size(key, value)
    elif key == "optimizer":
        optimizer_class(value)
    elif key == "regularizer":
        regularizers(value)
