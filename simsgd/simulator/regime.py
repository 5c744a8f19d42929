"""Settings as a function of epoch and step, in the forms that convNet.pytorch made common.

A regime is one of
- a dict keyed by epoch: `{0: {"optimizer": "SGD", "lr": 0.1}, 30: {"lr": 0.01}}`,
- a list of phases, each with an `epoch` or a `step` at which it begins,
- a function of (epoch), (epoch, step) or (epoch, step, results) that returns a dict of settings.

The first phase holds from the start, and a setting until a later phase changes it. A phase, or a
value in it, may be such a function too; a phase may have `step_lambda` or `epoch_lambda`, functions
of one number that return settings, and `lr_decay_rate` with `lr_decay_steps`: from the phase's step
on, lr is multiplied by the rate at every multiple of these steps. Keys are `optimizer` (a class of
torch.optim, or its name), the arguments of that optimizer, `param_groups`, `regularizer`, and those
of `OURS`.

Results are what the epochs that ended have left, in order, as {"val_loss": ..., "val_error1": ...}.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import torch

from ..settings import SettingError, check_size, require, unknown
from .optimizer_class import optimizer_arguments, optimizer_class, taken_by_any, torch_optimizers
from .parameter_groups import ParameterGroup, Settings, check_group, parameter_groups
from .regime_form import check_function, check_structure, copied
from .regularizers import regularizers

Phase = Mapping[str, Any] | Callable[..., object]
Results = Sequence[Mapping[str, float]]
Form = Mapping[float, Phase] | Sequence[Phase] | Callable[..., object] | None

OURS = ("prune", "compressor")  # fraction of entries dropped, in [0, 1); a spec; one at a time
_STRUCTURE = ("epoch", "step", "epoch_lambda", "step_lambda", "lr_decay_rate", "lr_decay_steps")
_LADDER = (0.75, 0.9375, 0.984375, 0.996)  # DGC's warm-up, dropped fractions


class Regime:
    """A function of (epoch, step, results so far); immutable, so there is nothing to save.

    Raises `SettingError` for a malformed phase, an unknown key or an unknown optimizer.
    """

    def __init__(self, form: Form = None) -> None:
        phases = _phases(copied(form))
        self._layers: tuple[tuple[list[Phase], Fraction], ...] = ((phases, Fraction(1)),)
        self._rates: tuple[Callable[[int], float], ...] = ()

    def then(self, upper: "Regime") -> "Regime":
        """Return the regime in which the settings of `upper` win over these."""
        both = Regime()
        both._layers = (*self._layers, *upper._layers)
        both._rates = (*self._rates, *upper._rates)
        return both

    def stretched(self, times: Fraction) -> "Regime":
        """Return the regime in which every epoch lasts `times` as long."""
        longer = Regime()
        longer._layers = tuple((phases, times * own) for phases, own in self._layers)
        longer._rates = self._rates
        return longer

    def scaled(self, rate: Callable[[int], float]) -> "Regime":
        """Return the regime in which lr, whoever sets it, is multiplied by a function of (step)."""
        scaled = self.then(Regime())
        scaled._rates = (*self._rates, rate)
        return scaled

    def at(self, epoch: int, step: int, results: Results = ()) -> Settings:
        """Return all settings in force at `epoch`, with `step` steps done since the start.

        `results` are those of the epochs that ended.
        """
        settings: Settings = {}
        for phases, times in self._layers:
            own = epoch if times == 1 else _plain(epoch / times)
            for phase in phases[: _reached(phases, own, step)]:
                new = _resolved(phase, own, step, results)
                if new.keys() & set(OURS):  # the later one takes the place of the other
                    settings = {k: v for k, v in settings.items() if k not in OURS}
                settings.update(new)
        factors = [rate(step) for rate in self._rates]
        return _multiplied(settings, factors) if factors else settings

    def may_set(self, *names: str) -> bool:
        """Return whether any phase sets one of these, or is a function, which may."""
        open_ended = {*names, "epoch_lambda", "step_lambda"}
        phases = [phase for own, _ in self._layers for phase in own]
        return any(callable(phase) or not open_ended.isdisjoint(phase) for phase in phases)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Epochs and steps, (epoch, 0) or (0, step), at which phases begin.

        None where functions say what holds, or where phases begin by epochs and others by steps.
        """
        phases: list[tuple[Mapping[str, Any], Fraction]] = []
        for phase, times in ((phase, times) for own, times in self._layers for phase in own):
            if callable(phase) or any(map(callable, phase.values())):
                return []
            phases.append((phase, times))
        epochs = {ceil(Fraction(p["epoch"]) * times) for p, times in phases if "epoch" in p} - {0}
        steps = {phase["step"] for phase, _ in phases if "step" in phase} - {0}
        if epochs and steps:
            return []
        return [(epoch, 0) for epoch in sorted(epochs)] + [(0, step) for step in sorted(steps)]

    @property
    def follows_results(self) -> bool:
        """Whether a function among the phases takes the results of the epochs before."""
        phases = [phase for own, _ in self._layers for phase in own]
        values = [[phase] if callable(phase) else [*phase.values()] for phase in phases]
        functions = [value for own in values for value in own if callable(value)]
        return any(_arguments(function) > len(("epoch", "step")) for function in functions)

    @property
    def follows_epochs(self) -> bool:
        """Whether settings may depend on the epoch."""
        return any(_by_epoch(phase) for phases, _ in self._layers for phase in phases)


def prune_warmup(prune: float, epochs: int) -> Regime:
    """Return DGC's warm-up of `epochs` epochs to a dropped fraction `prune`.

    The kept fraction goes 25 %, 6.25 %, 1.5625 %, 0.4 %, and then to its final value; steps below
    the final value are left out, the others share the warm-up's epochs evenly.
    Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3.

    >>> [prune_warmup(0.999, 4).at(epoch, 0)["prune"] for epoch in range(6)]
    [0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999]
    """
    rungs = [rung for rung in _LADDER if rung < prune] or [prune]
    climb: dict[float, Phase] = {
        -(-number * epochs // len(rungs)): {"prune": rung} for number, rung in enumerate(rungs)
    }
    return Regime({**climb, epochs: {"prune": prune}})


def _phases(form: Form) -> list[Phase]:
    if form is None:
        return []
    if isinstance(form, Mapping):
        by_epoch = all(isinstance(epoch, int | float) and epoch == epoch for epoch in form)
        require(by_epoch, "regime", dict(form), "must be keyed by epoch", 'as {0: {"lr": 0.1}}')
        phases = [_starting(epoch, form[epoch]) for epoch in sorted(form)]
    elif callable(form):
        phases = [form]
    else:
        phases = list(form)
    phases = [_grouped(_by_name(phase)) for phase in phases]
    for phase in phases:
        _check_phase(phase)
    for key in ("epoch", "step"):
        starts = [p[key] for p in phases if isinstance(p, Mapping) and key in p]
        require(starts == sorted(starts), "regime", starts, f"must list phases by rising {key}")
    return phases


def _by_name(settings: Any) -> Any:
    """Return settings with the name of an optimizer that they give by its class."""
    given: Any = settings.get("optimizer") if isinstance(settings, Mapping) else None
    if not isinstance(given, type):
        return settings
    name = given.__name__
    if torch_optimizers().get(name) is not given:
        raise SettingError("optimizer", name, "must be one of torch.optim")
    return {**settings, "optimizer": name}


def _grouped(settings: Any) -> Any:
    """Return settings with their parameter groups read, unless a function gives them."""
    form = settings.get("param_groups") if isinstance(settings, Mapping) else None
    if form is None or callable(form):
        return settings
    groups = parameter_groups(form)
    for group in groups:
        for key, value in group.options.items():
            _check_value("lr" if key == "lr_mult" else key, value)
        check_group(group)
    return {**settings, "param_groups": groups}


def _multiplied(settings: Settings, factors: Sequence[float]) -> Settings:
    """Return settings with every lr multiplied by `factors`, one after the other."""
    changed = dict(settings)
    for factor in factors if "lr" in settings else ():
        changed["lr"] = changed["lr"] * factor
    groups = []
    for group in settings.get("param_groups", ()):
        options = dict(group.options)
        for factor in factors if "lr" in options else ():
            options["lr"] = options["lr"] * factor
        groups.append(ParameterGroup(group.params, options))
    return {**changed, "param_groups": tuple(groups)} if groups else changed


def _starting(epoch: float, phase: Phase) -> Phase:
    if callable(phase):
        return {"epoch": epoch, "epoch_lambda": phase}
    require(isinstance(phase, Mapping), "regime", phase, f"must have a dict at epoch {epoch}")
    return {"epoch": epoch, **phase}


def _check_phase(phase: Phase) -> None:
    if callable(phase):
        check_function(phase)
        return
    require(isinstance(phase, Mapping), "regime", phase, "must consist of dicts or functions")
    check_structure(phase)
    _check_settings(phase, _STRUCTURE)


def _check_settings(settings: Mapping[str, object], structure: Sequence[str] = ()) -> None:
    known = {*OURS, "optimizer", "regularizer", "param_groups", *structure}
    for key, value in settings.items():
        if key not in known and key not in taken_by_any():
            fix = unknown("regime", str(key), known | taken_by_any()).fix.split(" `")[0]
            raise SettingError("regime", str(key), "sets something that is not known", fix)
        _check_value(key, value)
    both = settings.keys() >= set(OURS)
    require(not both, "regime", None, "sets prune and compressor at once", "set one")
    if isinstance(settings.get("optimizer"), str):
        takes = optimizer_arguments(settings["optimizer"])
        for key in settings.keys() - known - takes:
            rule, fix = f"is not taken by {settings['optimizer']}", "leave it out"
            value = None if settings[key] is True else settings[key]
            raise SettingError(key, value, rule, fix)


def _check_value(key: str, value: object) -> None:
    if callable(value):
        return
    if key == "prune":
        holds = isinstance(value, int | float) and 0 <= value < 1
        require(holds, "prune", value, "must lie in [0, 1)", "for 99.9 % use 0.999")
    elif key == "compressor":
        require(isinstance(value, str), key, value, "must be a spec, such as topk:0.01")
    elif key in ("lr", "weight_decay", "momentum"):
        one = not isinstance(value, torch.Tensor) or value.numel() == 1
        holds = isinstance(value, int | float | torch.Tensor) and one and bool(value >= 0)
        require(holds, key, value, "must be a number of at least 0")
        check_size(key, value)
    elif key == "optimizer":
        optimizer_class(value)
    elif key == "regularizer":
        regularizers(value)


def _reached(phases: list[Phase], epoch: float, step: int) -> int:
    """Return how many phases have begun: each begins after the one before it; the first always."""
    count = 1 if phases else 0
    while count < len(phases) and _begun(phases[count], epoch, step):
        count += 1
    return count


def _begun(phase: Phase, epoch: float, step: int) -> bool:
    if callable(phase):
        return True
    return bool(phase.get("epoch", float("inf")) <= epoch or phase.get("step", 2**63) <= step)


def _resolved(phase: Phase, epoch: float, step: int, results: Results) -> Settings:
    if callable(phase):
        return _checked(_called(phase, epoch, step, results))
    settings = {
        key: _called(value, epoch, step, results) if callable(value) else value
        for key, value in phase.items()
        if key not in _STRUCTURE
    }
    if "step_lambda" in phase:
        settings.update(phase["step_lambda"](step))
    if "epoch_lambda" in phase:
        settings.update(_called(phase["epoch_lambda"], epoch, step, results))
    if "lr_decay_rate" in phase:
        times = (step - phase.get("step", 0)) // phase["lr_decay_steps"]
        settings["lr"] = settings["lr"] * phase["lr_decay_rate"] ** times
    return _checked(settings)


def _plain(epoch: float | Fraction) -> float:
    return int(epoch) if epoch == int(epoch) else float(epoch)


def _called(function: Callable[..., object], epoch: float, step: int, results: Results) -> Any:
    return function(*(epoch, step, results)[: max(1, _arguments(function))])


def _arguments(function: Callable[..., object]) -> int:
    """Return how many arguments a function needs."""
    takes = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(takes)


def _checked(given: object) -> Settings:
    if not isinstance(given, Mapping):
        raise SettingError("regime", given, "must give a dict of settings")
    settings = dict(_grouped(_by_name(given)))
    _check_settings(settings)
    return settings


def _by_epoch(phase: Phase) -> bool:
    if callable(phase):
        return True
    varies = any(callable(value) for key, value in phase.items() if key != "step_lambda")
    return varies or phase.get("epoch", 0) > 0
