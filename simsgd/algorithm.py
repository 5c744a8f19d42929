"""How workers talk, as a recipe says it: the exchange, with the settings that it owns.

Letters: W workers.
"""

import dataclasses
from typing import Any

from .compressors import Compressor, composed
from .exchange import Butterfly, Exchange, Gossip, LocalSGD, ParameterExchange
from .exchange.stale import dimensions
from .recipe import Recipe
from .registry import build, find, names
from .settings import require
from .topology import topology

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


def exchange_of(recipe: Recipe) -> Exchange:
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
    filled: Exchange = dataclasses.replace(exchange, **given)
    _check(filled, recipe)
    return filled


def named(spec: str) -> Any:
    """Return the exchange of a spec, `choco` or `./mine.py:Mine`, with the settings that it names.

    Raises `SettingError` for an unknown one.
    """
    parts = build("algorithm", spec)
    ours = len(parts) == 1 and isinstance(parts[0], Exchange)
    require(ours, "algorithm", spec, "must be one exchange", "as simsgd.exchange defines it")
    return parts[0]


def spoken(exchange: Exchange, spec: str) -> Compressor:
    """Return the compressor of a spec; `SettingError` if workers cannot speak by it there."""
    compressor = composed(spec)
    exchange.check(compressor)
    return compressor


def check_optimizer(exchange: Exchange, name: str) -> None:
    """Raise `SettingError` if models of several workers cannot be stepped as one stack."""
    rule = "is not known to treat each number by itself, as models of several workers need"
    good = not exchange.parameters_per_worker or name in _ELEMENTWISE
    require(good, "optimizer", name, rule, f"use one of {', '.join(_ELEMENTWISE)}")


def _check(exchange: Exchange, recipe: Recipe) -> None:
    if isinstance(exchange, Gossip):
        graph = topology(exchange.topology, recipe.workers)
        rule = "has neighbours that change from step to step, which only dpsgd allows"
        good = recipe.algorithm == "dpsgd" or not graph.varies
        require(good, "topology", exchange.topology, rule)
    if isinstance(exchange, Butterfly):
        dimensions(recipe.workers)
    if not isinstance(exchange, ParameterExchange):
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
