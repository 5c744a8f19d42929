"""What a recipe and a regime mean at one step: who compresses, who remembers, who has momentum.

`momentum` has one owner: the memory if it declares the field, else the optimizer.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from .compressors import Compressor
from .config import Recipe
from .memory import Memory
from .regime import Form, Regime, Settings, prune_warmup
from .registry import build
from .settings import SettingError, kept, require

_OF_RECIPE = ("optimizer", "lr", "momentum", "nesterov", "weight_decay")


@dataclass(frozen=True)
class Method:
    """All that holds at one step."""

    compressor: Compressor
    memory: Memory
    optimizer: Settings  # what torch.optim gets
    local_decay: float  # weight decay in each worker's gradient, before the memory
    own_decay: float  # weight decay on the averaged gradient, with the memory's momentum
    kept: float  # fraction of each compressed segment that is sent

    @classmethod
    def at(cls, recipe: Recipe, regime: Regime, epoch: int, step: int) -> "Method":
        """Return the method in force at `epoch`, with `step` steps done.

        Raises `SettingError` for settings that do not go together.
        """
        settings = regime.at(epoch, step)
        prune = settings.get("prune", 0.0)
        memory = memory_of(recipe, regime)
        optimizer = dict(settings)
        decay, own_decay = float(settings.get("weight_decay", 0.0)), 0.0
        if owns_momentum(memory):
            memory = _with_momentum(memory, settings)
            optimizer.update(momentum=0.0, nesterov=False, weight_decay=0.0)
            own_decay = decay
        if recipe.weight_decay_at == "local":
            optimizer.update(weight_decay=0.0)
            own_decay = 0.0
        return cls(
            compressor=_single("compressor", f"topk:{kept(prune)}" if prune else "none"),
            memory=memory,
            optimizer=optimizer,
            local_decay=decay if recipe.weight_decay_at == "local" else 0.0,
            own_decay=own_decay,
            kept=kept(prune),
        )


def regime_of(recipe: Recipe, regime: Form | Regime) -> Regime:
    """Return a model's regime with what the recipe says laid over it, the warm-up included."""
    whole = regime if isinstance(regime, Regime) else Regime(regime)
    if recipe.prune is not None:
        climbs = recipe.warmup and recipe.prune > 0
        whole = whole.then(prune_warmup(recipe.prune, recipe.warmup_epochs if climbs else 0))
    chosen = {name: getattr(recipe, name) for name in _OF_RECIPE}
    return whole.then(Regime({0: {k: v for k, v in chosen.items() if v is not None}}))


def memory_name(recipe: Recipe, regime: Regime) -> str:
    """Return the spec of the memory: the recipe's, by default dgc where something is pruned."""
    prunes = recipe.prune > 0 if recipe.prune is not None else "prune" in regime.at(0, 0)
    return recipe.memory or ("dgc" if prunes else "none")


def memory_of(recipe: Recipe, regime: Regime) -> Memory:
    """Return the memory of a recipe."""
    memory: Memory = _single("memory", memory_name(recipe, regime))
    return memory


def owns_momentum(memory: Memory) -> bool:
    """Return whether the memory has the momentum, so that the optimizer must not."""
    settings: Any = memory
    return any(f.name == "momentum" for f in dataclasses.fields(settings))


def _with_momentum(memory: Memory, settings: Settings) -> Memory:
    name = settings.get("optimizer", "SGD")
    if name != "SGD":
        told = f"must not be dgc with {name}, whose momentum it cannot correct"
        raise SettingError("memory", None, told, "use memory residual, or optimizer SGD")
    dampening = settings.get("dampening", 0.0)
    require(dampening == 0, "dampening", dampening, "has no place in memory dgc", "leave it at 0")
    own: Any = memory
    momentum = settings.get("momentum", 0.0) if own.momentum is None else own.momentum
    nesterov = settings.get("nesterov", False) if own.nesterov is None else own.nesterov
    filled: Memory = dataclasses.replace(own, momentum=momentum, nesterov=nesterov)
    return filled


def _single(kind: str, spec: str) -> Any:
    parts = build(kind, spec)
    require(len(parts) == 1, kind, spec, "must be one method")
    return parts[0]
