"""The phases of a regime: checked before the first step, and followed at each.

Letters: n elements of one segment.
"""

import operator
from collections.abc import Mapping
from typing import SupportsFloat, SupportsIndex

from ..settings import SettingError, quoted, require, require_kind
from ..units import plain_numbers
from .components import Components
from .layer_compressors import LayerRules
from .method_choice import compressors_for
from .optimizer import RegimeOptimizer
from .own_schedule import check_schedule
from .running_state import RunningState
from .step_settings import StepSettings


def check_phases(parts: Components) -> None:
    """Raise `SettingError` if a phase of the regime cannot be followed when it comes.

    What a regime of functions asks for is known only then, and refused only then.
    """
    for epoch, step in ((0, 0), *parts.regime.starts):
        settings = StepSettings.at(parts.recipe, parts.regime, epoch, step, parts.memory)
        for plan in parts.optimizer.plans(settings.optimizer):
            parts.algorithm.check_optimizer(plan.optimizer)
    checked: tuple[str, LayerRules] = ("", ())
    for epoch, step in parts.regime.starts:
        settings = StepSettings.at(parts.recipe, parts.regime, epoch, step, parts.memory)
        RegimeOptimizer(parts.params).follow(settings.optimizer)
        if (settings.compressor, settings.layers) != checked:
            checked = settings.compressor, settings.layers
            compressors = compressors_for(parts.recipe, parts.algorithm, parts.layout, *checked)
            for segment, compressor in zip(parts.layout.segments, compressors, strict=True):
                if not segment.dense:
                    compressor.for_shape(segment.shape)


def follow_regime(parts: Components, state: RunningState) -> StepSettings:
    """Return the settings now in force, with the optimizer and the compressor set by them."""
    now = state.epoch or 0, state.steps
    check_schedule(parts.algorithm, parts.recipe, parts.samples, state.steps, state.epoch or 0)
    settings = StepSettings.at(parts.recipe, parts.regime, *now, parts.memory, state.results)
    parts.optimizer.follow(settings.optimizer)
    state.set_compressor(parts, settings.compressor, settings.layers)
    return settings


def enter_epoch(parts: Components, state: RunningState, epoch: int | None) -> int:
    """Take note of the epoch of the next step, and return it; None: as before.

    Raises `SettingError` for what is no epoch, and if the regime or the algorithm follows epochs
    and none was ever given.
    """
    epoch = None if epoch is None else _checked(epoch)
    if epoch is not None and epoch != state.epoch:
        state.epoch = epoch
        state.begin()
    if state.epoch is None:
        _require_no_epoch(parts)
    return state.epoch or 0


def numbers_of(results: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return the results of an epoch. Raises `SettingError` for what are no numbers by name."""
    require_kind("results", results, Mapping)
    for name in results:
        require_kind("results", name, str)
    return {name: _number(name, value) for name, value in results.items()}


def _number(name: str, value: SupportsFloat) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # of None, and of several
        pass
    raise SettingError("results", quoted(value), f"must have a number as {name}")


def told_last(last: object) -> bool:
    """Return whether a step was said to be the last. Raises `SettingError` for anything else."""
    plain = plain_numbers(last)
    require_kind("last", plain, bool)
    return bool(plain)


def _require_no_epoch(parts: Components) -> None:
    """Raise `SettingError` if the regime, the warm-up or the algorithm follows epochs."""
    if parts.regime.follows_epochs:
        rule = "is needed: the regime, its scheduler or the warm-up follows it"
        fix = "call step(x, y, epoch=e), or set warmup=False and a regime without epochs"
        raise SettingError("epoch", None, rule, fix)
    if first := getattr(parts.algorithm, "post_local_from", 0):
        rule = f"is needed: post_local_from {first} follows it"
        raise SettingError("epoch", None, rule, "call step(x, y, epoch=e)")


def _checked(epoch: SupportsIndex) -> int:
    """Return the number of an epoch. Raises `SettingError` for anything else."""
    whole = hasattr(epoch, "__index__") and operator.index(epoch) >= 0
    require(whole, "epoch", epoch, "must be a whole number of at least 0")
    return operator.index(epoch)
