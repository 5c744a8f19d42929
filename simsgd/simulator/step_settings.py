"""The settings of one step: what recipe and regime mean then.

`momentum` has one owner: the memory if it declares the field, else the optimizer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from ..given_object import GivenObject, plainly
from ..methods.memories import Memory
from ..methods.presets import preset_of
from ..recipe import Recipe
from ..results.config_values import in_full
from ..settings import SettingError, kept, require, shown
from .layer_compressors import LayerRules
from .method_choice import (
    compressor_spec,
    memory_name,
    memory_named,
    memory_of,
)
from .optimizer_class import optimizer_arguments
from .own_optimizer import beside_object, optimizer_settings
from .parameter_groups import ParameterGroup, Settings, check_groups
from .regime import (
    OURS,
    Form,
    Regime,
    Results,
    prune_warmup,
)
from .regularizers import Regularizer, regularizers
from .schedulers import scheduler_setting

_OPTIMIZER_SETTINGS = ("optimizer", "lr", "momentum", "nesterov", "weight_decay", "param_groups")
_IN_ANY_GROUP = ("lr", "lr_mult", "weight_decay")  # a group of many models may have them


@dataclass(frozen=True)
class StepSettings:
    """All that holds at one step."""

    compressor: str  # its spec
    layers: LayerRules  # those of the layers that have their own
    flush: bool  # send all that the memories hold, whatever the compressor
    memory: Memory
    optimizer: Settings  # what torch.optim gets
    lr: float  # the regime's; 0 if it sets none
    local_decay: float  # weight decay in each worker's gradient, before the memory
    own_decay: float  # weight decay on the averaged gradient, with the memory's momentum
    decay_groups: tuple[ParameterGroup, ...]  # whose weight decay acts where that of the two does
    regularizers: tuple[Regularizer, ...]  # act where weight decay does
    penalize_locally: bool  # whether that is in each worker's gradient
    kept: float | None  # fraction of each compressed segment that is sent; None: see the messages

    @classmethod
    def at(
        cls,
        recipe: Recipe,
        regime: Regime,
        epoch: int,
        step: int,
        memory: Memory | None = None,
        results: Results = (),
    ) -> "StepSettings":
        """Return the settings in force at `epoch`, with `step` steps done.

        `memory` is what `memory_of` gave, if it was asked already; `results` are those of the
        epochs that ended. Raises `SettingError` for settings that do not go together.
        """
        settings = regime.at(epoch, step, results)
        memory = memory or memory_of(recipe, regime)
        flush = recipe.flush_every > 0 and (step + 1) % recipe.flush_every == 0
        local = recipe.weight_decay_at == "local"
        lr, decay = float(settings.get("lr", 0.0)), float(settings.get("weight_decay", 0.0))
        optimizer, own_decay = dict(settings), 0.0
        groups: tuple[ParameterGroup, ...] = settings.get("param_groups", ())
        if memory.owns_momentum:
            spec = memory_name(recipe, regime)
            fix = "use memory residual, or leave it out"
            _check_groups(groups, ("optimizer", "momentum", "nesterov"), f"memory {spec}", fix)
            memory = _with_momentum(memory, memory_name(recipe, regime), settings)
            optimizer.update(momentum=0.0, nesterov=False, weight_decay=0.0)
            own_decay = 0.0 if local else decay
        if memory.keeps_lr:
            _check_plain(settings)
            spec = "lr_in_memory" if recipe.lr_in_memory else "memory residual:lr=true"
            fix = "leave lr_in_memory out, or it" if recipe.lr_in_memory else "use memory residual"
            _check_groups(groups, ("optimizer", "lr", "lr_mult"), spec, fix)
            memory = memory.at_rate(lr)
            optimizer.update(lr=1.0, weight_decay=decay * lr)
        if local:
            optimizer.update(weight_decay=0.0)
        ours = local or memory.owns_momentum
        if groups:
            times = 0.0 if ours else lr if memory.keeps_lr else 1.0
            optimizer["param_groups"] = tuple(g.with_decay_times(times) for g in groups)
        return cls(
            compressor=compressor_spec(settings),
            layers=settings.get("compress_layers", ()),
            flush=flush,
            memory=memory,
            optimizer=optimizer,
            lr=lr,
            local_decay=decay if local else 0.0,
            own_decay=own_decay,
            decay_groups=groups if ours else (),
            regularizers=regularizers(settings.get("regularizer")),
            penalize_locally=local,
            kept=1.0 if flush else _nominally_kept(settings),
        )

    @property
    def penalty_momentum(self) -> tuple[float, bool]:
        """Momentum, and whether it is Nesterov's, of what is added to the averaged gradient.

        It is the memory's if that owns the momentum, else 0, as the optimizer has it.
        """
        return self.memory.inertia


def regime_of(
    recipe: Recipe, regime: Form | Regime, model: nn.Module, params: Mapping[str, nn.Parameter]
) -> Regime:
    """Return a model's regime with the recipe's settings laid over it, the warm-up included.

    `params` are those of the model that are trained. Raises `SettingError` for settings that do
    not go together, as an optimizer that is an object and a regime in plain form that sets its lr.
    """
    if isinstance(regime, Regime):
        whole = regime
    else:
        whole = beside_object(recipe.optimizer, Regime(regime))
    if recipe.method is not None and recipe.optimizer is None:
        whole = whole.then(Regime(preset_of(recipe.method).regime))
    if recipe.prune is not None:
        climbs = recipe.warmup and recipe.prune > 0
        whole = whole.then(prune_warmup(recipe.prune, recipe.warmup_epochs if climbs else 0))
    if recipe.compressor is not None:
        whole = whole.then(Regime({0: {"compressor": recipe.compressor}}))
    if recipe.compress_layers is not None:
        whole = whole.then(Regime({0: {"compress_layers": recipe.compress_layers}}))
    chosen = {name: getattr(recipe, name) for name in _OPTIMIZER_SETTINGS}
    given = {k: v for k, v in chosen.items() if v is not None}
    if recipe.optimizer is not None:
        given = {**optimizer_settings(recipe.optimizer, model, params), **_without_optimizer(given)}
    if recipe.scheduler is not None:
        every, optimizer = recipe.scheduler_every, recipe.optimizer
        _require_begun_alike(recipe)
        given["scheduler"] = scheduler_setting(recipe.scheduler, every, optimizer)
    try:
        whole = whole.then(Regime({0: given}))
    except SettingError as wrong:
        raise _of_optimizer(wrong, recipe) from wrong
    _check_effects(recipe, whole, given)
    _check_momentum(recipe)
    check_groups(recipe.param_groups, params)
    _require_same_again(whole)
    return whole


def _require_begun_alike(recipe: Recipe) -> None:
    """Raise `SettingError` for what a scheduler that is an object would begin without."""
    scheduler = recipe.scheduler.value if isinstance(recipe.scheduler, GivenObject) else None
    if not hasattr(scheduler, "optimizer"):
        return
    for name in ("lr", "momentum"):
        rule = "has no effect beside a scheduler that is an object, which has its optimizer's"
        value = getattr(recipe, name)
        require(value is None, name, value, rule, "set it in that optimizer, or leave it out")


def _require_same_again(regime: Regime) -> None:
    """Raise `SettingError` for a regime that gives other settings for a step when asked again.

    So does a function that counts its calls, or draws: it is asked for a step as often as need be.
    """
    try:
        first, again = regime.at(0, 0), regime.at(0, 0)
    except Exception:
        return
    for name in sorted(first.keys() & again.keys()):
        one, other = first[name], again[name]
        if isinstance(one, bool | int | float | str) and one == one and one != other:
            rule = f"gives {name} {shown(one)} for step 0, and {shown(other)} when asked again"
            fix = "let what it gives follow from epoch, step and results alone"
            raise SettingError("regime", None, rule, fix)


@contextmanager
def told_of_method(recipe: Recipe) -> Iterator[None]:
    """Raise what is wrong with a value that a published method sets as an error of the method."""
    try:
        yield
    except SettingError as wrong:
        value = wrong.value
        if recipe.method is None or value is None or value != _set_by_method(wrong.name, recipe):
            raise
        rule = f"sets {wrong.name} to {in_full(value)}, which {wrong.rule}"
        raise SettingError("method", recipe.method, rule, wrong.fix) from wrong


def _set_by_method(name: str, recipe: Recipe) -> object:
    """Return the value of a setting that is the published method's; None: it is another."""
    usual = None if recipe.method is None else preset_of(recipe.method).settings.get(name)
    return usual if getattr(recipe, name, None) == usual else None


def _of_optimizer(wrong: SettingError, recipe: Recipe) -> SettingError:
    """Return an error of what a method sets as one of the optimizer that was given beside it."""
    usual, optimizer = _set_by_method(wrong.name, recipe), recipe.optimizer
    if usual is None or optimizer is None:
        return wrong
    rule = f"takes no {wrong.name}, which method {recipe.method} sets to {in_full(usual)}"
    return SettingError("optimizer", optimizer, rule, "leave it out")


def _without_optimizer(given: Settings) -> Settings:
    return {key: value for key, value in given.items() if key != "optimizer"}


def _check_effects(recipe: Recipe, regime: Regime, given: Settings) -> None:
    """Raise `SettingError` for a setting that has no effect here."""
    name = regime.at(0, 0).get("optimizer", "SGD")
    for key in ("momentum", "nesterov"):
        if given.get(key) and key not in optimizer_arguments(name):
            value = None if given[key] is True else given[key]
            raise SettingError(key, value, f"is not taken by {name}", "leave it out")
    _check_group_options(regime)
    check_use(recipe, regime.may_set(*OURS, "compress_layers"))


def _check_momentum(recipe: Recipe) -> None:
    """Raise `SettingError` for a momentum, but 0, beside a memory whose spec has another."""
    memory = memory_named(recipe.memory or "none")
    for name in ("momentum", "nesterov") if memory.owns_momentum else ():
        own, given = getattr(memory, name, None), getattr(recipe, name)
        if own is not None and given not in (None, 0, own, _set_by_method(name, recipe)):
            rule = f"is {own} in memory {plainly(recipe.memory or '')}"
            raise SettingError(name, in_full(given), rule, "give one of them")


def _check_group_options(regime: Regime) -> None:
    """Raise `SettingError` for an option of a group that no optimizer of the regime takes."""
    phases = [regime.at(0, 0), *(regime.at(epoch, step) for epoch, step in regime.starts)]
    kinds = list(dict.fromkeys(phase.get("optimizer", "SGD") for phase in phases))
    takes = frozenset().union(*map(optimizer_arguments, kinds), _IN_ANY_GROUP)
    for group in phases[0].get("param_groups", ()):
        others = [] if "optimizer" in group.options else sorted(group.options.keys() - takes)
        rule = f"has a group with {', '.join(others)}, which {kinds[0]} does not take"
        require(not others, "param_groups", str(group), rule, "leave it out")


def check_use(recipe: Recipe, compresses: bool) -> None:
    """Raise `SettingError` for a setting of compression where nothing is compressed."""
    if compresses or recipe.downlink is not None or recipe.aggregate != "mean":
        return
    for key in ("prune_1d", "compress_if", "index_dtype", "flush_every", "collective"):
        value = getattr(recipe, key)
        if value != Recipe.__dataclass_fields__[key].default:
            rule, fix = "has no effect where nothing is compressed", "set compressor or prune too"
            raise SettingError(key, None if value is True else value, rule, fix)


def _check_groups(
    groups: tuple[ParameterGroup, ...], keys: tuple[str, ...], spec: str, fix: str
) -> None:
    """Raise `SettingError` for an option of a group that a memory has for all parameters."""
    given = [(key, group.options[key]) for group in groups for key in keys if key in group.options]
    for key, option in given:
        value = None if option is True else option
        rule = f"has no place in a parameter group beside {spec}"
        raise SettingError(key, value, rule, fix)


def _check_plain(settings: Settings) -> None:
    name = settings.get("optimizer", "SGD")
    if name != "SGD":
        rule = f"takes lr out of SGD and cannot do so for {name}"
        raise SettingError("memory", "residual:lr=true", rule, "use residual, or optimizer SGD")
    if settings.get("regularizer"):
        rule = "has no place beside a memory that collects lr times the gradient"
        fix = "use memory residual, or weight_decay"
        raise SettingError("regularizer", None, rule, fix)


def _with_momentum(memory: Memory, spec: str, settings: Settings) -> Memory:
    name = settings.get("optimizer", "SGD")
    if name != "SGD":
        rule = f"must not be {spec} with {name}: it takes over the momentum of SGD"
        raise SettingError("memory", None, rule, "use memory residual, or optimizer SGD")
    dampening = settings.get("dampening", 0.0)
    if dampening:
        rule = f"has no place in memory {spec}"
        raise SettingError("dampening", dampening, rule, "leave it at 0")
    momentum, nesterov = settings.get("momentum", 0.0), settings.get("nesterov", False)
    return memory.with_momentum(momentum, nesterov)


def _nominally_kept(settings: Settings) -> float | None:
    if settings.get("compress_layers"):
        return None
    if "prune" in settings:
        return kept(settings["prune"])
    return 1.0 if compressor_spec(settings) == "none" else None
