"""Builds the schedule of a run, its regime and epochs, from model, regime files and settings.

Letters: W workers, b samples each, B = W * b.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

from torch import nn

from ..catalog import attribute, load
from ..config import Config, default
from ..given_object import PREFIX
from ..settings import SettingError, require
from ..simulator.own_optimizer import beside_object
from ..simulator.regime import Regime
from ..units import joined_by_plus
from .declared import check_declared, check_one_schedule, found_in_file, try_epochs

_BATCH = 128  # the global batch of a regime that names none
_KEYS = ("regime", "schedule", "epochs", "batch", "scale_lr", "scale_epochs")
_Declared = dict[str, Any]  # what a file declares, by `_KEYS`; None: nothing


@dataclass(frozen=True)
class Schedule:
    """What holds when, and for how long."""

    regime: Regime
    epochs: int
    name: str  # of the regime, or the word model for the model's own
    scale_lr: str  # sqrt, linear or none
    scale_epochs: bool


def schedule_of(config: Config, module: ModuleType, model: nn.Module, batches: int) -> Schedule:
    """Return the schedule of a run whose epochs have `batches` steps.

    Of files joined by +, later ones win. Raises `SettingError` for a file without a regime, and
    where the number of epochs is given nowhere.
    """
    own = _of_model(module, model, str(config.model))
    names = joined_by_plus(config.regime or "model")
    rule, fix = "must have a name before and behind each +", "as in model+./regime.py"
    require(all(names), "regime", config.regime, rule, fix)
    parts = [own if name == "model" else _of_file(name) for name in names]
    declared = {key: _last(key, [own, *parts]) for key in ("batch", "scale_lr", "scale_epochs")}
    size = config.workers * config.worker_batch
    ratio = Fraction(size, declared["batch"] or _BATCH)
    stretch = declared["scale_epochs"] if config.scale_epochs is None else config.scale_epochs
    times = ratio if stretch else Fraction(1)
    if config.steps is not None:
        epochs = -(-config.steps // batches)
    else:
        epochs = config.epochs or _epochs(_last("epochs", [own, *parts]), times)
    steps = config.steps or epochs * batches
    whole = Regime()
    for name, part in zip(names, parts, strict=True):
        with _named(config, name):
            upper = _regime(part, (epochs, batches, steps), times)
            if part is not own:
                upper = beside_object(config.optimizer, upper)
            whole = whole.then(upper)
    scale_lr = config.scale_lr or declared["scale_lr"] or "none"
    rate = _rate(config, scale_lr, float(ratio), batches)
    whole = whole if rate is None else whole.scaled(rate)
    with _named(config, "+".join(names)):
        try_epochs(whole, epochs, batches)
    return Schedule(
        whole,
        epochs,
        "+".join(names),
        scale_lr,
        bool(stretch),
    )


@contextmanager
def _named(config: Config, regime: str) -> Iterator[None]:
    """Raise what is wrong with a setting of a regime as an error of its file, or of the model."""
    try:
        yield
    except SettingError as wrong:
        if wrong.name == "regime":
            raise
        raise found_in_file(wrong, *_file(config, regime)) from wrong


@contextmanager
def told_of_files(config: Config, schedule: Schedule, own_criterion: bool) -> Iterator[None]:
    """Raise what is wrong with a value of a user's file, and of no option, as an error of the file.

    `own_criterion` says whether the loss is one that the model declares. What a model or a regime
    of simsgd sets is right by itself, and an option would change it.
    """
    try:
        yield
    except SettingError as wrong:
        if own_criterion and wrong.name == "criterion":
            raise found_in_file(wrong, "model", config.model) from wrong
        given = getattr(config, wrong.name, None) is not None
        name, file = _file(config, schedule.name)
        own = ".py" in str(file) or str(file).startswith(PREFIX)
        if given or not own or wrong.name not in schedule.regime.names:
            raise
        raise found_in_file(wrong, name, file) from wrong


def _file(config: Config, regime: str) -> tuple[str, str | None]:
    """Return the setting that names the file of a regime, and what it names."""
    return ("model", config.model) if regime == "model" else ("regime", regime)


def _of_model(module: ModuleType, model: nn.Module, name: str) -> _Declared:
    """Return what a model declares, and what the regime declares that it names."""
    declared = {key: attribute(module, model, key) for key in _KEYS}
    check_declared(declared, "model", name)
    for place in (module, model):
        check_one_schedule(place, "model", name)
    if getattr(model, "regime", None) is not None:  # over what the file has
        declared["schedule"] = None
    if not isinstance(declared["regime"], str):
        return declared
    try:
        named = _of_file(declared["regime"])
    except SettingError as wrong:
        rule = f"declares regime = {declared['regime']}, which {wrong.rule}"
        raise SettingError("model", name, rule, wrong.fix) from wrong
    return named | {k: v for k, v in declared.items() if v is not None and k != "regime"}


def _of_file(name: str) -> _Declared:
    file = load("regimes", name)
    declared = {key: getattr(file, key, None) for key in _KEYS}
    if declared["regime"] is None and declared["schedule"] is None:
        raise SettingError("regime", name, "defines no regime")
    check_one_schedule(file, "regime", name)
    check_declared(declared, "regime", name)
    return declared


def _last(key: str, parts: list[_Declared]) -> Any:
    """Return the last value that is declared."""
    return next((part[key] for part in reversed(parts) if part[key] is not None), None)


def _epochs(epochs: int | None, times: Fraction) -> int:
    require(epochs is not None, "epochs", None, "is needed: the model has no default")
    assert epochs is not None
    return max(1, math.ceil(epochs * times))


def _regime(part: _Declared, length: tuple[int, int, int], times: Fraction) -> Regime:
    """Return a part's regime; a `schedule` knows the length, any other is stretched to it.

    `length` are epochs, the last of which may not be whole, steps of an epoch, and steps.
    """
    if part["schedule"] is not None:
        return Regime(_made(part["schedule"], length))
    form = part["regime"]
    return (form if isinstance(form, Regime) else Regime(form)).stretched(times)


def _made(schedule: Callable[..., Any], length: tuple[int, int, int]) -> Any:
    """Return what a `schedule` makes. Raises `SettingError` if it cannot be called so."""
    given = length[: _taken(schedule)]
    try:
        inspect.signature(schedule).bind(*given)
    except TypeError as wrong:
        rule = f"has a function schedule{inspect.signature(schedule)}"
        raise SettingError("regime", None, rule, "take (epochs, batches)") from wrong
    return schedule(*given)


def _taken(schedule: Callable[..., object]) -> int:
    """Return how many of (epochs, batches, steps) a schedule takes: 2 or 3."""
    return 3 if len(inspect.signature(schedule).parameters) > 2 else 2


def _rate(config: Config, rule: str, ratio: float, batches: int) -> Callable[[int], float] | None:
    """Return what lr is multiplied by, a function of the step, or None for nothing.

    A rate above 1 is reached evenly over the warm-up, from 1, as Goyal et al. do, "Accurate, Large
    Minibatch SGD: Training ImageNet in 1 Hour", 2017, https://arxiv.org/abs/1706.02677.
    """
    if rule == "none":
        warmup = config.scale_warmup_epochs
        if warmup != default("scale_warmup_epochs"):
            raise SettingError("scale_warmup_epochs", warmup, "has no effect without scale_lr")
        return None
    rate = math.sqrt(ratio) if rule == "sqrt" else ratio
    steps = config.scale_warmup_epochs * batches
    if rate <= 1 or steps == 0:
        return lambda step: rate
    return lambda step: 1 + (rate - 1) * min(1.0, step / steps)
