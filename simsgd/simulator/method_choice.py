"""Which algorithm, compressor and memory the settings of a step mean, and whether they go together.

Letters: W workers.
"""

import dataclasses
from collections.abc import Mapping

import torch

from ..communication.segments import Layout
from ..given_object import plainly
from ..methods.algorithms import Algorithm, ParameterAlgorithm
from ..methods.algorithms.contract import check_without_memory
from ..methods.compressors import Compressor, composed
from ..methods.memories import Memory
from ..recipe import Recipe
from ..registry import build, find, is_own, names, settings_given, settings_of
from ..settings import SettingError, kept, one_line, quoted, require
from ..units import alternatives
from .layer_compressors import LayerRules, by_segment, check_layers
from .parameter_groups import Settings
from .regime import Regime

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


def algorithm_of(recipe: Recipe) -> Algorithm:
    """Return the algorithm of a recipe, with the settings that the recipe gives for it.

    Raises `SettingError` for an unknown algorithm, a setting that it does not have, or a number of
    workers that it cannot take.
    """
    plain = algorithm_named(recipe.algorithm)
    known = _settings_of(type(plain))
    given = recipe.algorithm_settings()
    for name, value in given.items():
        if name not in known:
            owners = [a for a in names("algorithm") if name in _settings_of(find("algorithm", a))]
            rule = f"has no effect with algorithm {recipe.algorithm}"
            fix = f"leave it out, or use algorithm {alternatives(owners)}"
            raise SettingError(name, value, rule, fix)
    _check_given_once(plain, recipe, given)
    algorithm = dataclasses.replace(plain, **given)
    if is_own(algorithm):
        _check_own(algorithm, recipe)
    else:
        algorithm.check(recipe)
    return algorithm


def _check_own(algorithm: Algorithm, recipe: Recipe) -> None:
    """Raise `SettingError` for what a user's own algorithm refuses by any `ValueError`."""
    try:
        algorithm.check(recipe)
    except SettingError:
        raise
    except ValueError as wrong:
        rule = f"refuses the settings: {one_line(wrong)}"
        raise SettingError("algorithm", type(algorithm).__name__, rule) from wrong
    if algorithm.has_own_memory:  # its check may leave out the contract's
        check_without_memory(recipe)


def _check_given_once(plain: Algorithm, recipe: Recipe, given: Mapping[str, object]) -> None:
    """Raise `SettingError` for a setting beside a spec that has another value of it.

    The spec of a published method is what such settings are to change.
    """
    spec = recipe.algorithm
    preset = None if recipe.method is None else build("preset", recipe.method)[0]
    if preset is not None and preset.settings.get("algorithm") == spec:
        return
    for name in settings_given("algorithm", spec) & given.keys():
        own, value = getattr(plain, name), given[name]
        rule = f"is {own} in algorithm {plainly(spec)}"
        require(own == value, name, value, rule, "give one of them")


def algorithm_named(spec: str) -> Algorithm:
    """Return the algorithm of a spec, `choco` or `./mine.py:Mine`, with the settings in it.

    Raises `SettingError` for an unknown one.
    """
    parts = build("algorithm", spec)
    if len(parts) != 1 or not isinstance(parts[0], Algorithm):
        rule = "must be one algorithm"
        raise SettingError("algorithm", spec, rule, "as simsgd.methods defines it")
    return parts[0]


def compressor_for(algorithm: Algorithm, spec: str) -> Compressor:
    """Return the compressor of a spec. Raises `SettingError` if the algorithm cannot take it."""
    compressor = composed(spec)
    algorithm.check_compressor(compressor)
    return compressor


def compressor_spec(settings: Settings) -> str:
    """Return the spec of the compressor that the settings of a regime ask for."""
    prune = settings.get("prune")
    return f"topk:{kept(prune)}" if prune else settings.get("compressor", "none")


def compressor_specs(settings: Settings) -> list[str]:
    """Return the specs of all compressors that the settings of a regime ask for."""
    layers = settings.get("compress_layers", ())
    return [compressor_spec(settings), *(rule.compressor for rule in layers)]


def compressors_for(
    recipe: Recipe, algorithm: Algorithm, layout: Layout, spec: str, layers: LayerRules
) -> list[Compressor]:
    """Return the compressor of each segment: that of `spec`, or of the first rule that takes it.

    Raises `SettingError` for one that does not go with the algorithm or the memory, which the
    recipe names, for a rule that no segment follows, and for a compressor that no segment has.
    """
    check_layers(layout, layers, recipe.granularity)
    layout.require_compressed(spec, recipe.rule)
    found = []
    for each in (spec, *(rule.compressor for rule in layers)):
        compressor = compressor_for(algorithm, each)
        if recipe.devices > 1 and compressor.needs_squares:
            rule = "looks at the gradients of single samples, and a node knows the mean alone"
            raise SettingError("compressor", each, rule, "use another, or leave out cluster")
        check_memory(recipe, compressor, each)
        found.append(compressor)
    return by_segment(layout, layers, found[1:], found[0])


def memory_name(recipe: Recipe, regime: Regime) -> str:
    """Return the spec of the memory: the recipe's, else the one that suits the compressor.

    That is the first in the regime to need one, or the first of all.

    That is dgc for `prune`, residual for another biased compressor, none for an unbiased one; where
    workers exchange models it is never dgc, and none for an algorithm with a memory of its own.
    """
    if recipe.memory is not None:
        return recipe.memory
    phases = [regime.at(0, 0), *(regime.at(epoch, step) for epoch, step in regime.starts)]
    algorithm = algorithm_named(recipe.algorithm)
    if algorithm.has_own_memory:
        return "none"
    for settings in phases:
        if settings.get("prune") and not isinstance(algorithm, ParameterAlgorithm):
            return "dgc"
        if any(needs_memory(composed(spec)) for spec in compressor_specs(settings)):
            return "residual"
    return "none"


def needs_memory(compressor: Compressor) -> bool:
    """Return whether what the compressor leaves out is lost without a memory."""
    return compressor.biased and not compressor.has_own_memory


def check_memory(recipe: Recipe, compressor: Compressor, spec: str) -> None:
    """Raise `SettingError` where both the compressor and the memory keep what is not sent.

    `spec` is the compressor's, and the recipe names the memory.
    """
    if recipe.memory not in (None, "none") and compressor.has_own_memory:
        rule = f"must be none with {spec}, which keeps what it does not send itself"
        raise SettingError("memory", recipe.memory, rule)


def memory_of(recipe: Recipe, regime: Regime) -> Memory:
    """Return the memory of a recipe; `SettingError` if it cannot be with the algorithm."""
    spec = memory_name(recipe, regime)
    memory = memory_named(spec)
    _check_momentum(memory)
    algorithm = algorithm_named(recipe.algorithm)
    if isinstance(algorithm, ParameterAlgorithm) and memory.owns_momentum:
        rule = f"owns the gradient's momentum, but algorithm {recipe.algorithm} does not exchange"
        raise SettingError("memory", spec, f"{rule} gradients", "use residual or none")
    if memory.needs_mean_of_all and not algorithm.computes_mean:
        rule = f"needs the mean over workers, which algorithm {recipe.algorithm} never computes"
        raise SettingError("memory", spec, rule, "use residual or none")
    return memory.with_lr() if recipe.lr_in_memory else memory


def _check_momentum(memory: Memory) -> None:
    """Raise `SettingError` for a memory of a user's own whose momentum is none."""
    value = getattr(memory, "momentum", None)
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    if is_own(memory) and value is not None and not number:
        rule, name = f"has momentum {quoted(value)}", type(memory).__name__
        fix = "let it lie in [0, 1), or be None for the regime's"
        raise SettingError("memory", name, rule, fix)


def amp_dtype(recipe: Recipe, own: torch.dtype) -> torch.dtype | None:
    """Return the dtype of mixed precision for parameters of an `own` dtype; None: theirs alone."""
    if recipe.amp is None:
        return None
    if own != torch.float32:
        rule = f"mixes nothing with parameters of {own}"
        raise SettingError("amp", recipe.amp, rule, "leave it out, or set dtype=float32")
    return _AMP[recipe.amp]


def stored_dtype(recipe: Recipe) -> torch.dtype | None:
    """Return what the memory, which the recipe names, is kept in between steps; None: as it is.

    Raises `SettingError` for a memory that keeps nothing, and for one whose parts must agree.
    """
    if recipe.state_dtype is None:
        return None
    memory = memory_named(recipe.memory or "none")
    if memory.keeps_nothing:
        raise SettingError("state_dtype", recipe.state_dtype, "has no effect with memory none")
    if memory.needs_exact_state:
        rule = f"cannot be with memory {recipe.memory}: its parts must agree to the last bit"
        raise SettingError("state_dtype", recipe.state_dtype, rule, "leave it out")
    dtype: torch.dtype = getattr(torch, recipe.state_dtype)
    return dtype


def memory_named(spec: str) -> Memory:
    """Return the memory of a spec. Raises `SettingError` for several, or an unknown one."""
    parts = build("memory", spec)
    if len(parts) != 1:
        raise SettingError("memory", spec, "must be one memory")
    memory: Memory = parts[0]
    return memory


def _settings_of(algorithm: type) -> set[str]:
    return {f.name for f in settings_of(algorithm)}
