"""Settings as a function of epoch and step, in the forms that convNet.pytorch made common.

A regime is one of
- a dict keyed by epoch: `{0: {"optimizer": "SGD", "lr": 0.1}, 30: {"lr": 0.01}}`,
- a list of phases, each with an `epoch` or a `step` at which it begins,
- a function of (epoch), (epoch, step) or (epoch, step, results) that returns a dict of settings.

The first phase holds from the start, and a setting until a later phase changes it. A phase, or a
value in it, may be such a function too; a phase may have `step_lambda` or `epoch_lambda`, functions
of one number that return settings, and `lr_decay_rate` with `lr_decay_steps`: from the phase's step
on, lr is multiplied by the rate at every multiple of these steps. Keys are `optimizer` (a class of
torch.optim, or its name), the arguments of that optimizer, `param_groups`, `scheduler`,
`regularizer`, `compress_layers`, and those of `OURS`.

Results are what the epochs that ended have left, in order, as {"val_loss": ..., "val_error1": ...}.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

from ..settings import SettingError, fits, quoted, require
from ..units import plain_numbers
from .parameter_groups import Settings
from .regime_form import arguments_of, called, check_function, check_structure, copied
from .regime_settings import OURS as OURS
from .regime_settings import check_settings, multiplied, read_settings
from .schedulers import CHANGED, Scheduler

Phase = Mapping[str, Any] | Callable[..., object]
Results = Sequence[Mapping[str, float]]
_Function = Callable[..., object]
Form = Mapping[float, Phase] | Sequence[Phase] | Callable[..., object] | None

_LAMBDAS = ("epoch_lambda", "step_lambda")
_STRUCTURE = ("epoch", "step", *_LAMBDAS, "lr_decay_rate", "lr_decay_steps")
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
        settings, place = self._unscheduled(epoch, step, results)
        if place is not None:
            settings = self._scheduled(settings, place, epoch, step, results)
        factors = [rate(step) for rate in self._rates]
        return multiplied(settings, factors) if factors else settings

    def _unscheduled(
        self, epoch: int, step: int, results: Results
    ) -> "tuple[Settings, _Place | None]":
        """Return the settings in force, and where the scheduler among them began, if there is one.

        A later phase of the same regime ends a scheduler if it sets lr.
        """
        settings: Settings = {}
        place: _Place | None = None
        for phases, times in self._layers:
            own = epoch if times == 1 else _plain(epoch / times)
            for number, phase in enumerate(phases[: _reached(phases, own, step)]):
                new = _resolved(phase, own, step, results)
                if new.keys() & set(OURS):  # the later one takes the place of the other
                    settings = {k: v for k, v in settings.items() if k not in OURS}
                if "scheduler" in new:
                    place = _Place.of(phase, times)
                elif number and "lr" in new:
                    settings.pop("scheduler", None)
                settings.update(new)
        return settings, place if settings.get("scheduler") else None

    def _scheduled(
        self, settings: Settings, place: "_Place", epoch: int, step: int, results: Results
    ) -> Settings:
        """Return settings with what their scheduler makes of those with which it began."""
        scheduler: Scheduler = settings["scheduler"]
        steps = step - place.step
        if scheduler.every == "epoch":
            rule = f"is stepped every epoch, and its phase begins with step {place.step}"
            fix = "let it begin with an epoch"
            require(not place.step, "scheduler", scheduler.text, rule, fix)
            steps = max(0, int((epoch - place.epoch) / place.times))
        elif place.epoch:
            rule = f"is stepped every step, and its phase begins with epoch {place.epoch}"
            raise SettingError("scheduler", scheduler.text, rule, "let it begin with a step")
        begun, _ = self._unscheduled(place.epoch, place.step, results[: place.epoch])
        require("lr" in begun, "scheduler", scheduler.text, "begins without an lr", "set lr too")
        changed = scheduler.after(steps, begun, results[place.epoch :])
        own = changed.keys() - {"param_groups"}
        again = {k: changed[k] for k in own if k in CHANGED or changed[k] is not begun.get(k)}
        groups = settings.get("param_groups", ())
        if groups == begun.get("param_groups", ()) and groups:
            again["param_groups"] = changed["param_groups"]
        return {**settings, **again}

    def may_set(self, *names: str) -> bool:
        """Return whether any phase sets one of these, or is a function, which may."""
        open_ended = {*names, *_LAMBDAS}
        phases = [phase for own, _ in self._layers for phase in own]
        return any(callable(phase) or not open_ended.isdisjoint(phase) for phase in phases)

    def wrapped(self, wrap: Callable[[_Function], _Function]) -> "Regime":
        """Return the regime with `wrap` around each function that gives settings."""
        again = Regime()
        again._layers = tuple(([_wrapped(p, wrap) for p in own], n) for own, n in self._layers)
        again._rates = self._rates
        return again

    @property
    def names(self) -> frozenset[str]:
        """What phases set; functions, as far as they do at the start."""
        phases = [phase for own, _ in self._layers for phase in own if isinstance(phase, Mapping)]
        at_first, _ = self._unscheduled(0, 0, ())
        return frozenset(at_first).union(*phases) - set(_STRUCTURE)

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
        return any(arguments_of(function) > len(("epoch", "step")) for function in functions)

    @property
    def follows_epochs(self) -> bool:
        """Whether settings may depend on the epoch."""
        return any(_by_epoch(phase) for phases, _ in self._layers for phase in phases)


@dataclass(frozen=True)
class _Place:
    """Where a phase begins."""

    epoch: int
    step: int
    times: Fraction  # that an epoch of the regime lasts

    @classmethod
    def of(cls, phase: Phase, times: Fraction) -> "_Place":
        if callable(phase):
            return cls(0, 0, times)
        return cls(ceil(Fraction(phase.get("epoch", 0)) * times), phase.get("step", 0), times)


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
        by_epoch = all(fits(epoch, [float]) and epoch == epoch for epoch in form)
        require(by_epoch, "regime", dict(form), "must be keyed by epoch", 'as {0: {"lr": 0.1}}')
        phases = [_starting(epoch, form[epoch]) for epoch in sorted(form)]
    elif callable(form):
        phases = [form]
    else:
        phases = list(form)
    phases = [read_settings(phase) for phase in phases]
    for phase in phases:
        _check_phase(phase)
    for key in ("epoch", "step"):
        starts = [p[key] for p in phases if isinstance(p, Mapping) and key in p]
        require(starts == sorted(starts), "regime", starts, f"must list phases by rising {key}")
    _require_starts(phases)
    return phases


def _require_starts(phases: Sequence[Phase]) -> None:
    """Raise `SettingError` for a phase that begins with the one before and sets the same."""
    plain = [phase for phase in phases if isinstance(phase, Mapping)]
    for earlier, phase in pairwise(plain):
        twice = sorted(set(earlier) & set(phase))
        starts = {"epoch", "step"} & set(phase)
        rule = f"has a later phase without epoch or step, which sets {', '.join(twice)} again"
        fix = 'say where it begins, as {"epoch": 30, "lr": 0.01}'
        require(bool(starts) or not twice, "regime", None, rule, fix)
        again = [name for name in twice if name not in starts]
        if again and all(phase[key] == earlier.get(key) for key in starts):
            begin = " and ".join(f"{key} {phase[key]}" for key in sorted(starts))
            rule = f"has two phases from {begin} that set {', '.join(again)}"
            raise SettingError("regime", None, rule, "leave one out")


def _wrapped(phase: Phase, wrap: Callable[[_Function], _Function]) -> Phase:
    if callable(phase):
        return wrap(phase)
    return {key: wrap(value) if key in _LAMBDAS else value for key, value in phase.items()}


def _starting(epoch: float, phase: Phase) -> Phase:
    if callable(phase):
        return {"epoch": epoch, "epoch_lambda": phase}
    require(isinstance(phase, Mapping), "regime", phase, f"must have a dict at epoch {epoch}")
    for key in ("epoch", "step"):
        rule, fix = f"has {key} in the phase that begins with epoch {epoch}", "leave it out"
        require(key not in phase, "regime", quoted(phase.get(key)), rule, fix)
    return {"epoch": epoch, **phase}


def _check_phase(phase: Phase) -> None:
    if callable(phase):
        check_function(phase)
        return
    require(isinstance(phase, Mapping), "regime", phase, "must consist of dicts or functions")
    check_structure(phase)
    check_settings(phase, _STRUCTURE)


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
    now = epoch, step, results
    if callable(phase):
        return _checked(_with_values(_dict(called(phase, *now)), now))
    own = {key: value for key, value in phase.items() if key not in _STRUCTURE}
    settings = _with_values(own, now)
    if "step_lambda" in phase:
        settings.update(_dict(phase["step_lambda"](step)))
    if "epoch_lambda" in phase:
        settings.update(_dict(called(phase["epoch_lambda"], *now)))
    if "lr_decay_rate" in phase:
        times = (step - phase.get("step", 0)) // phase["lr_decay_steps"]
        settings["lr"] = settings["lr"] * phase["lr_decay_rate"] ** times
    return _checked(settings)


def _with_values(settings: Settings, now: tuple[float, int, Results]) -> Settings:
    """Return settings with what their functions give."""
    return {
        key: called(value, *now) if callable(value) and not isinstance(value, type) else value
        for key, value in settings.items()
    }


def _plain(epoch: float | Fraction) -> float:
    return int(epoch) if epoch == int(epoch) else float(epoch)


def _dict(given: object) -> Settings:
    if not isinstance(given, Mapping):
        raise SettingError("regime", given, "must give a dict of settings")
    if numbers := [key for key in given if not isinstance(key, str)]:
        rule = "has a function that gives a regime, not the settings of its epoch"
        raise SettingError("regime", quoted(numbers[0]), rule, 'return {"lr": 0.1}')
    return dict(given)


def _checked(given: object) -> Settings:
    settings = dict(read_settings(plain_numbers(_dict(given))))
    check_settings(settings)
    return settings


def _by_epoch(phase: Phase) -> bool:
    if callable(phase):
        return True
    scheduler = phase.get("scheduler")
    if isinstance(scheduler, Scheduler) and scheduler.every == "epoch":
        return True
    varies = any(callable(value) for key, value in phase.items() if key != "step_lambda")
    return varies or phase.get("epoch", 0) > 0
