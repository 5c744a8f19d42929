"""How workers talk, as a recipe says it: the exchange, with the settings that it owns.

Letters: W workers.
"""

import dataclasses
from typing import Any

import torch

from ..communication.topology import topology
from ..methods.algorithms import (
    Algorithm,
    Asynchronous,
    Butterfly,
    Gossip,
    LocalSGD,
    ParameterAlgorithm,
)
from ..methods.algorithms.asynchronous import dimensions
from ..methods.compressors import Compressor, composed
from ..methods.memories import EF21, Memory, Residual
from ..recipe import Recipe
from ..registry import build, find, names
from ..settings import kept, require
from .regime import Regime, Settings

OWNED = {  # settings of some algorithms only, and their values where nobody gave one
    "aggregate": "mean",
    "topology": None,
    "consensus_stepsize": None,
    "local_steps": None,
    "post_local_from": None,
    "participation": None,
    "outer_lr": None,
    "outer_momentum": None,
    "staleness": None,
    "downlink": None,
}
_ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD",
)  # fmt: skip


def exchange_of(recipe: Recipe) -> Algorithm:
    """Return the exchange of a recipe.

    Raises `SettingError` for an unknown algorithm, a setting that it does not have, or a number of
    workers that it cannot do with.
    """
    exchange = named(recipe.algorithm)
    known = {f.name for f in dataclasses.fields(exchange)}
    given = {
        name: getattr(recipe, name)
        for name, absent in OWNED.items()
        if getattr(recipe, name) != absent
    }
    for name in given:
        owners = [a for a in names("algorithm") if name in _fields(a)]
        rule = f"has no effect with algorithm {recipe.algorithm}"
        fix = f"leave it out, or use algorithm {' or '.join(owners)}"
        require(name in known, name, given[name], rule, fix)
    filled: Algorithm = dataclasses.replace(exchange, **given)
    _check(filled, recipe)
    return filled


def named(spec: str) -> Any:
    """Return the exchange of a spec, `choco` or `./mine.py:Mine`, with the settings that it names.

    Raises `SettingError` for an unknown one.
    """
    parts = build("algorithm", spec)
    ours = len(parts) == 1 and isinstance(parts[0], Algorithm)
    require(ours, "algorithm", spec, "must be one exchange", "as simsgd.exchange defines it")
    return parts[0]


def spoken(exchange: Algorithm, spec: str) -> Compressor:
    """Return the compressor of a spec; `SettingError` if workers cannot speak by it there."""
    compressor = composed(spec)
    exchange.check(compressor)
    return compressor


def check_optimizer(exchange: Algorithm, name: str) -> None:
    """Raise `SettingError` if models of several workers cannot be stepped as one stack."""
    rule = "is not known to treat each number by itself, as models of several workers need"
    good = not exchange.parameters_per_worker or name in _ELEMENTWISE
    require(good, "optimizer", name, rule, f"use one of {', '.join(_ELEMENTWISE)}")


def _check(exchange: Algorithm, recipe: Recipe) -> None:
    if isinstance(exchange, Gossip):
        graph = topology(exchange.topology, recipe.workers)
        rule = "has neighbors that change from step to step, which only dpsgd allows"
        good = recipe.algorithm == "dpsgd" or not graph.varies
        require(good, "topology", exchange.topology, rule)
    if isinstance(exchange, Butterfly):
        dimensions(recipe.workers)
    if not isinstance(exchange, ParameterAlgorithm):
        return
    told = f"with algorithm {recipe.algorithm}"
    fix = "each worker's own optimizer has its weight decay"
    local = recipe.weight_decay_at == "local"
    require(not local, "weight_decay_at", "local", f"has no effect {told}", fix)
    if isinstance(exchange, LocalSGD):
        lr = recipe.lr_in_memory
        require(not lr, "lr_in_memory", None, f"has no effect {told}, which says no gradients")
        return
    rule = f"must be none {told}, which keeps what it does not send by itself"
    require(recipe.memory in (None, "none"), "memory", recipe.memory, rule)
    require(not recipe.flush_every, "flush_every", recipe.flush_every, f"has no effect {told}")


def _fields(name: str) -> set[str]:
    method: Any = find("algorithm", name)
    return {f.name for f in dataclasses.fields(method)}


def memory_name(recipe: Recipe, regime: Regime) -> str:
    """Return the spec of the memory: the recipe's, else the one that suits what is sent at first.

    That is dgc for `prune`, residual for another biased compressor, none for an unbiased one; where
    workers speak of models it is never dgc, and none for an algorithm that remembers by itself.
    """
    if recipe.memory is not None:
        return recipe.memory
    settings = regime.at(0, 0)
    speaks = named(recipe.algorithm)
    if speaks.has_own_memory:
        return "none"
    if settings.get("prune") and not isinstance(speaks, ParameterAlgorithm):
        return "dgc"
    return "residual" if needs_memory(composed(compressor_spec(settings))) else "none"


def needs_memory(compressor: Compressor) -> bool:
    """Return whether what the compressor leaves out is lost without a memory."""
    return compressor.biased and not compressor.has_own_memory


def check_memory(recipe: Recipe, compressor: Compressor, spec: str) -> None:
    """Raise `SettingError` where the compressor remembers by itself and the memory does so again.

    `spec` is the compressor's, and the recipe names the memory.
    """
    rule = f"must be none with {spec}, which keeps what it does not send by itself"
    once = recipe.memory in (None, "none") or not compressor.has_own_memory
    require(once, "memory", recipe.memory, rule)


def memory_of(recipe: Recipe, regime: Regime) -> Memory:
    """Return the memory of a recipe; `SettingError` if it cannot be with the algorithm."""
    name = memory_name(recipe, regime)
    memory: Memory = _single("memory", name)
    if isinstance(named(recipe.algorithm), ParameterAlgorithm):
        rule = f"takes over the momentum of gradients, which algorithm {recipe.algorithm} says not"
        fix = "use residual or none"
        require(not owns_momentum(memory), "memory", name, rule, fix)
    if isinstance(memory, EF21):
        rule = f"needs the mean of what all say, which algorithm {recipe.algorithm} has nowhere"
        mean = not isinstance(named(recipe.algorithm), Asynchronous | Butterfly)
        require(mean, "memory", name, rule, "use residual or none")
    if recipe.lr_in_memory:
        holds = isinstance(memory, Residual)
        rule = "needs memory residual, which collects lr times the gradient"
        require(holds, "lr_in_memory", None, rule, "set memory=residual")
        memory = dataclasses.replace(memory, lr=True)  # type: ignore[type-var]
    return memory


def amp_dtype(recipe: Recipe, own: torch.dtype) -> torch.dtype | None:
    """Return the dtype of mixed precision for parameters of an `own` dtype; None: theirs alone."""
    if recipe.amp is None:
        return None
    rule, fix = f"mixes nothing with parameters of {own}", "leave it out, or set dtype=float32"
    require(own == torch.float32, "amp", recipe.amp, rule, fix)
    return {"bf16": torch.bfloat16, "fp16": torch.float16}[recipe.amp]


def stored_dtype(recipe: Recipe) -> torch.dtype | None:
    """Return what the memory, which the recipe names, is kept in between steps; None: as it is.

    Raises `SettingError` for a memory that keeps nothing, and for one whose parts must agree.
    """
    if recipe.state_dtype is None:
        return None
    kind = (recipe.memory or "none").partition(":")[0]
    require(kind != "none", "state_dtype", recipe.state_dtype, "has no effect with memory none")
    rule = "cannot be with memory ef21: a mean of rounded estimates is not the rounded mean"
    require(kind != "ef21", "state_dtype", recipe.state_dtype, rule, "leave it out")
    dtype: torch.dtype = getattr(torch, recipe.state_dtype)
    return dtype


def owns_momentum(memory: Memory) -> bool:
    """Return whether the memory has the momentum, so that the optimizer must not."""
    settings: Any = memory
    return any(f.name == "momentum" for f in dataclasses.fields(settings))


def compressor_spec(settings: Settings) -> str:
    """Return the spec of the compressor that the settings of a regime ask for."""
    prune = settings.get("prune")
    return f"topk:{kept(prune)}" if prune else settings.get("compressor", "none")


def _single(kind: str, spec: str) -> Any:
    parts = build(kind, spec)
    require(len(parts) == 1, kind, spec, "must be one method")
    return parts[0]
