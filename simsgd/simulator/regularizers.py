"""What a regime adds to the averaged gradient: weight decay or L1 that spare biases, and clipping.

A regime has them under the key `regularizer`, one or a list, in convNet.pytorch's form:

    {"name": "WeightDecay", "value": 1e-4}

By default WeightDecay and L1 spare biases and the parameters of normalization layers. A `filter`
chooses other parameters: {"parameter_name": f(name), "module": g(module)}, each
returning whether to take one; {} takes all.

Letters: P all parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from ..given_object import WITHOUT_ASYNC, is_async
from ..settings import SettingError, require, unknown
from .parameter_groups import ParameterGroup, members_of
from .regime_form import accepts

_NORMALIZING = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def _is_no_bias(name: str) -> bool:
    return not name.endswith("bias")


def _is_no_normalization(module: nn.Module) -> bool:
    return not isinstance(module, _NORMALIZING)


class Filter(TypedDict, total=False):
    """Which parameters a regularizer takes; what is left out lets all pass."""

    parameter_name: Callable[[str], bool]
    module: Callable[[nn.Module], bool]  # in which the parameter lies


SPARING: Filter = {"parameter_name": _is_no_bias, "module": _is_no_normalization}


@dataclass(frozen=True)
class Regularizer:
    """A penalty on some parameters, or a limit on the gradient. Raises `SettingError`."""

    value: float  # its strength, at least 0
    filter: Filter = field(default_factory=lambda: SPARING, hash=False)

    def __post_init__(self) -> None:
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        good = number and 0 <= self.value < math.inf
        require(good, "regularizer", self.value, "must have a finite value of at least 0")
        holds = isinstance(self.filter, Mapping)
        require(holds, "regularizer", self.filter, "must have a dict of functions as filter")
        for key, takes in self.filter.items():
            if key not in SPARING:
                raise unknown("regularizer", key, SPARING)
            rule = f"has an async function as {key} of its filter"
            require(not is_async(takes), "regularizer", None, rule, WITHOUT_ASYNC)
            if not callable(takes) or not accepts(takes, None):
                rule = f"must have a function of one argument as {key} of its filter"
                raise SettingError("regularizer", None if callable(takes) else takes, rule)

    def takes(self, name: str, module: nn.Module) -> bool:
        """Return whether it acts on the parameter of a name that lies in a module."""
        by_name = self.filter.get("parameter_name", _always)
        by_module = self.filter.get("module", _always)
        return bool(by_name(name) and by_module(module))

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient of its penalty, of the parameter's shape; None if it has none."""
        return None


@dataclass(frozen=True)
class WeightDecay(Regularizer):
    """(value / 2) |p|^2, the same as SGD's weight_decay, but for chosen parameters."""

    def gradient(self, parameter: Tensor) -> Tensor:
        """Return value * p."""
        return parameter.detach() * self.value


@dataclass(frozen=True)
class L1(Regularizer):
    """value * |p|_1, by its subgradient; convNet.pytorch shrinks by the value after the step."""

    def gradient(self, parameter: Tensor) -> Tensor:
        """Return value * sign(p)."""
        return parameter.detach().sign() * self.value


@dataclass(frozen=True)
class GradClip(Regularizer):
    """Scales the averaged gradient to a norm of at most value; each worker's own is `clip`'s."""

    filter: Filter = field(default_factory=Filter, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.value > 0, "regularizer", self.value, "must have a norm greater than 0")

    def clip_(self, gradients: list[Tensor], rows: bool = False) -> None:
        """Scale gradients in place, as torch.nn.utils.clip_grad_norm_ does; or each row of them."""
        if not gradients:
            return
        flat = [g.reshape(len(g) if rows else 1, -1) for g in gradients]  # [L or 1, n] each
        norm = torch.stack([g.norm(dim=1) for g in flat]).norm(dim=0)
        scale = (self.value / (norm + 1e-6)).clamp(max=1)  # [L or 1]
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)) if rows else scale[0])


_NAMES: dict[str, type[Regularizer]] = {
    "WeightDecay": WeightDecay,
    "L2Regularization": WeightDecay,
    "L1Regularization": L1,
    "L1": L1,
    "GradClip": GradClip,
}


def regularizers(form: object) -> tuple[Regularizer, ...]:
    """Return what a regime's `regularizer` means; None is none.

    Raises `SettingError` for a form, a name or a value that does not exist.
    """
    if form is None:
        return ()
    if isinstance(form, list | tuple):
        return tuple(each for part in form for each in regularizers(part))
    if isinstance(form, Regularizer):
        return (form,)
    rule = 'must be as {"name": "WeightDecay", "value": 1e-4}, or a list of such'
    if not isinstance(form, Mapping) or "name" not in form:
        raise SettingError("regularizer", form, rule)
    settings = {key: value for key, value in form.items() if key != "name"}
    if form["name"] not in _NAMES:
        raise unknown("regularizer", str(form["name"]), _NAMES)
    for key in settings:
        if key not in ("value", "filter"):
            raise unknown("regularizer", str(key), ("value", "filter"))
    require("value" in settings, "regularizer", form, "lacks a value", rule)
    return (_NAMES[form["name"]](**settings),)


class Regularized:
    """The parameters of a model, and which of them each regularizer takes."""

    def __init__(self, model: nn.Module, params: dict[str, nn.Parameter]) -> None:
        self.params = params
        self._like = {name: p for name, p in model.named_parameters() if name in params}
        self._homes = {
            f"{prefix}.{name}".lstrip("."): module
            for prefix, module in model.named_modules()
            for name, _ in module.named_parameters(recurse=False)
        }

    def decays(self, weight_decay: float, groups: Sequence[ParameterGroup]) -> dict[str, float]:
        """Return each parameter's weight decay by name, unless 0: its group's, or the usual."""
        own = [weight_decay, *(g.options.get("weight_decay", weight_decay) for g in groups)]
        if not any(own):
            return {}
        members = members_of(groups, self._like)
        found = {name: decay for decay, names in zip(own, members, strict=True) for name in names}
        return {name: found[name] for name in self.params if found[name]}

    def penalty_gradients(
        self,
        chosen: tuple[Regularizer, ...],
        decays: Mapping[str, float] | None = None,
        params: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the sum of the penalties' gradients, {name: [*shape]} of the parameters taken.

        `decays` is the weight decay by name; parameters are taken at `params`, or at the model's.
        """
        at = params or self.params
        found = {name: at[name].detach() * decay for name, decay in (decays or {}).items()}
        for regularizer in chosen:
            for name in self.taken(regularizer):
                penalty = regularizer.gradient(at[name])
                if penalty is not None:
                    found[name] = found[name] + penalty if name in found else penalty
        return found

    def rows(
        self,
        chosen: tuple[Regularizer, ...],
        decays: Mapping[str, float],
        params: Mapping[str, Tensor],
        per_worker: bool,
    ) -> dict[str, Tensor]:
        """Return `penalty_gradients` of all parameters, with a row a worker or one for all."""
        found = self.penalty_gradients(chosen, decays, params)
        every = {name: found.get(name, torch.zeros_like(p)) for name, p in params.items()}
        if per_worker:
            return every
        return {name: penalty.unsqueeze(0) for name, penalty in every.items()}

    def clip_(
        self, gradients: dict[str, Tensor], chosen: tuple[Regularizer, ...], rows: bool = False
    ) -> None:
        """Clip averaged gradients {name: [*shape]} in place, or {name: [L, *shape]} by `rows`."""
        for regularizer in chosen:
            if isinstance(regularizer, GradClip):
                regularizer.clip_([gradients[name] for name in self.taken(regularizer)], rows)

    def taken(self, regularizer: Regularizer) -> list[str]:
        """Return the names of the parameters that a regularizer takes."""
        return [name for name in self.params if regularizer.takes(name, self._homes[name])]


def _always(_: object) -> bool:
    return True
