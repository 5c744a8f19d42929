"""Schedulers of torch.optim.lr_scheduler, as functions of how often they were stepped.

A regime has one under `scheduler`, with the arguments of its class:

    {"name": "CosineAnnealingLR", "T_max": 30}                     stepped after every epoch
    {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 900, "every": "step"}
    {"make": lambda optimizer: LinearLR(optimizer), "every": "step"}

It begins with the phase that names it, from the lr and the parameter groups of then; a later phase
that sets lr ends it. `ReduceLROnPlateau` looks at the validation loss of each epoch.

The scheduler really runs, on an optimizer without a model, from its beginning to where it is asked
for: what it gives depends on nothing but that, so that a resumed run is the same to the last bit.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..given_object import WITHOUT_ASYNC, GivenObject, is_async, is_lost, refuse_lost
from ..settings import SettingError, require, shown, unknown
from .optimizer_class import optimizer_arguments, optimizer_class
from .parameter_groups import ParameterGroup, Settings

EVERY = ("epoch", "step")
_ROUNDED = 1e-9  # below 0, where a schedule would end at 0
_MOST_STEPS = 2_000_000  # of a scheduler: the values after each are kept
CHANGED = ("lr", "momentum", "betas")  # by schedulers of torch
Made = Callable[[torch.optim.Optimizer], LRScheduler]


@dataclass
class Scheduler:
    """A scheduler of torch, stepped after every epoch or step. Raises `SettingError`."""

    text: str  # as shown
    make: Made
    every: str = "epoch"
    _begun: list[Settings] = field(default_factory=list, repr=False)
    _past: list[list[Settings]] = field(default_factory=list, repr=False)  # after n steps, by group
    _runs: LRScheduler | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        rule = f"must be one of {', '.join(EVERY)}"
        require(self.every in EVERY, "scheduler_every", self.every, rule)

    def __str__(self) -> str:
        return f"{self.text}, every {self.every}"

    def __deepcopy__(self, memo: object) -> "Scheduler":
        return self

    def after(
        self, steps: int, settings: Settings, results: Sequence[Mapping[str, float]]
    ) -> Settings:
        """Return settings as they are after some steps of the scheduler that began with `settings`.

        `results` are those of the epochs since then.
        """
        losses = [row["val_loss"] for row in results if "val_loss" in row]
        rule = f"would be stepped {steps:,} times, and may be {_MOST_STEPS:,} times"
        require(steps <= _MOST_STEPS, "scheduler", self.text, rule, "use a regime's own lr")
        groups = settings.get("param_groups", ())
        begun = [settings, *(group.over(settings) for group in groups)]
        changed = self._at(steps, begun, losses)
        rule = "looks at val_loss, which the results of epochs lack"
        has_none = self._looks_at_losses and results and not losses
        require(not has_none, "scheduler", self.text, rule, 'give end_epoch({"val_loss": LOSS})')
        own = tuple(
            ParameterGroup(group.params, {**_without(group.options, "lr_mult"), **now})
            for group, now in zip(groups, changed[1:], strict=True)
        )
        return {**settings, **changed[0], **({"param_groups": own} if own else {})}

    def _at(self, steps: int, begun: list[Settings], losses: Sequence[float]) -> list[Settings]:
        if self._runs is None or self._begun != begun or self._looks_at_losses:
            self._begun, self._past = begun, []
            self._runs = self._made(begun)
            self._past.append(self._values(begun, [{}] * len(begun)))
            self._require_numbers(self._past[-1])
        scheduler = self._runs
        if self._looks_at_losses:
            steps = min(steps, len(losses))
        while len(self._past) <= steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the optimizer took no step
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(losses[len(self._past) - 1])
                else:
                    self._step(scheduler)
            self._past.append(self._values(begun, self._past[-1]))
            self._require_numbers(self._past[-1])
        return self._past[steps]

    def _values(self, begun: list[Settings], before: list[Settings]) -> list[Settings]:
        """Return the options of each group that were changed, now or `before`.

        With those of `begun` that schedulers of torch change.
        """
        assert self._runs is not None
        found, optimizer = [], self._runs.optimizer
        for group, own, past in zip(optimizer.param_groups, begun, before, strict=True):
            usual = {key: own.get(key, value) for key, value in optimizer.defaults.items()}
            may = past.keys() | (own.keys() & CHANGED)
            chosen = [k for k in usual if k in group and (k in may or group[k] != usual[k])]
            found.append({key: group[key] for key in chosen})
        return found

    def _require_numbers(self, groups: Sequence[Settings]) -> None:
        """Raise `SettingError` for a lr that float32 cannot have, and for one below 0."""
        for lr in (float(group["lr"]) for group in groups if "lr" in group):
            fits = -_ROUNDED <= lr <= torch.finfo(torch.float32).max
            rule = f"makes lr {lr:g} after {len(self._past) - 1} of its steps"
            fix = "lr must be a finite number of float32, of at least 0"
            require(fits, "scheduler", self.text, rule, fix)

    def _step(self, scheduler: LRScheduler) -> None:
        try:
            scheduler.step()
        except (TypeError, ValueError, ArithmeticError) as wrong:
            zero = "it divides by zero, which an argument of 0 may do"
            rule = f"cannot be stepped: {zero if isinstance(wrong, ZeroDivisionError) else wrong}"
            raise SettingError("scheduler", self.text, rule) from wrong

    @property
    def _looks_at_losses(self) -> bool:
        return isinstance(self._runs, lr_scheduler.ReduceLROnPlateau)

    def _made(self, begun: list[Settings]) -> LRScheduler:
        """Return the scheduler on an optimizer with groups such as `begun`, and no model."""
        kind = begun[0].get("optimizer", "SGD")
        takes = optimizer_arguments(kind)
        groups = [
            {
                **{k: v for k, v in own.items() if k in takes},
                "params": [torch.nn.Parameter(torch.zeros(1, 1))],
            }
            for own in begun
        ]
        usual = {k: v for k, v in groups[0].items() if k != "params"}
        make: Callable[..., torch.optim.Optimizer] = optimizer_class(kind)
        optimizer = make(groups, **usual)
        waits, rule = is_async(self.make), "is an async function"
        require(not waits, "scheduler", self.text, rule, WITHOUT_ASYNC)
        try:
            scheduler = self.make(optimizer)
        except (TypeError, ValueError, KeyError, ArithmeticError) as wrong:
            missing = re.findall(r"'(\w+)'", str(wrong)) if "required" in str(wrong) else []
            rule = f"lacks {', '.join(missing)}" if missing else f"cannot be made: {wrong}"
            raise SettingError("scheduler", self.text, rule) from wrong
        if not hasattr(scheduler, "step") or not hasattr(scheduler, "optimizer"):
            kind = type(scheduler).__name__
            rule = f"makes no scheduler of torch.optim.lr_scheduler but a {kind}"
            raise SettingError("scheduler", self.text, rule)
        rule = "makes a scheduler of another optimizer than the one it is given"
        require(scheduler.optimizer is optimizer, "scheduler", self.text, rule)
        plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        if plateau and self.every != "epoch":
            rule = "looks at the validation loss, which only epochs have"
            raise SettingError("scheduler", self.text, rule, "use scheduler_every epoch")
        return scheduler


def scheduler_of(form: object) -> Scheduler:
    """Return what a regime's `scheduler` means. Raises `SettingError` for a form that is none."""
    if isinstance(form, Scheduler):
        return form
    one_of = isinstance(form, Mapping) and ("name" in form) != ("make" in form)
    rule = "must be a dict with name, or make, and the arguments of that class"
    if not isinstance(form, Mapping) or not one_of:
        raise SettingError("scheduler", form, rule, 'as {"name": "CosineAnnealingLR", "T_max": 30}')
    every = form.get("every", "epoch")
    arguments = {k: v for k, v in form.items() if k not in ("name", "make", "every")}
    if "make" in form:
        text = getattr(form["make"], "__name__", type(form["make"]).__name__).strip("<>")
        return Scheduler(text, form["make"], every)
    return named_scheduler(form["name"], arguments, every)


def named_scheduler(name: object, arguments: Mapping[str, Any], every: str) -> Scheduler:
    """Return a scheduler of torch by the name of its class.

    Raises `SettingError` for an unknown one, or an argument that it does not take.
    """
    known = _schedulers()
    if not isinstance(name, str) or name not in known:
        raise unknown("scheduler", str(name), known)
    takes = [key for key in inspect.signature(known[name]).parameters if key != "optimizer"]
    for key in arguments:
        if key not in takes:
            rule, fix = f"has no argument {key}", f"it has {', '.join(takes)}"
            raise SettingError("scheduler", name, rule, fix)
    text = ", ".join(f"{key}={shown(value)}" for key, value in arguments.items())
    given = dict(arguments)
    return Scheduler(
        f"{name}: {text}" if text else name, lambda own: known[name](own, **given), every
    )


def scheduler_setting(spec: str, every: str, optimizer: str | None = None) -> Scheduler:
    """Return the scheduler of a setting: `CosineAnnealingLR:T_max=30`, or an object.

    An object is a scheduler that was not stepped yet, or a function that makes one of an optimizer.
    Raises `SettingError` for one of another `optimizer` than the setting's, if that is an object.
    """
    from ..catalog import parse_config

    if is_lost(spec):
        refuse_lost("scheduler", spec)
    if not isinstance(spec, GivenObject):
        name, _, arguments = spec.partition(":")
        try:
            return named_scheduler(name, parse_config(arguments), every)
        except SettingError as wrong:
            fix = "write it as CosineAnnealingLR:T_max=30"
            raise SettingError("scheduler", spec, wrong.rule, wrong.fix or fix) from wrong
    given: Any = spec.value
    text = str(spec)
    if not hasattr(given, "optimizer"):
        if not callable(given):
            rule = "must be a scheduler of torch, or a function that makes one of an optimizer"
            raise SettingError("scheduler", text, rule)
        return Scheduler(text, given, every)
    theirs = optimizer.value if isinstance(optimizer, GivenObject) else None
    same = not isinstance(theirs, torch.optim.Optimizer) or given.optimizer is theirs
    rule, fix = "is of another optimizer than the one that is given", "make it of that one"
    require(same, "scheduler", text, rule, fix)
    return Scheduler(text, lambda own: _copied(given, own), every)


def _copied(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Return a copy of a user's scheduler that has `optimizer` in place of its own."""
    theirs = scheduler.optimizer
    for group, own in zip(optimizer.param_groups, theirs.param_groups, strict=True):
        begun = [k for k, v in theirs.defaults.items() if k not in CHANGED and own.get(k) == v]
        kept = {"params", *begun}  # which may be set beside the optimizer
        group.update({key: value for key, value in own.items() if key not in kept})
    return copy.deepcopy(scheduler, {id(theirs): optimizer})


def _without(options: Settings, name: str) -> Settings:
    return {key: value for key, value in options.items() if key != name}


def _schedulers() -> dict[str, Any]:
    return {
        name: found
        for name, found in vars(lr_scheduler).items()
        if isinstance(found, type)
        and (issubclass(found, LRScheduler) or name == "ReduceLROnPlateau")
        and not name.startswith("_")
        and name not in ("LRScheduler", "SequentialLR", "ChainedScheduler")  # need others
    }
